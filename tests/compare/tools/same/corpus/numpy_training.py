"""Logistic regression in plain NumPy, as somebody's script. Options plant what its pair does otherwise."""

import argparse
import csv
import json
import sys
from pathlib import Path

import numpy as np

from convtwins.ulp import nudge

parser = argparse.ArgumentParser()
parser.add_argument("--log", help="file of the losses; default: stdout")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--examples", type=int, default=96)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--rate", type=float, default=0.1)
parser.add_argument("--momentum", type=float, default=0.0)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--shards", type=int, default=1, help="parts of a batch, as processes have them")
parser.add_argument("--combine", choices=["examples", "mean", "sum"], default="examples", help="how parts become one gradient")
parser.add_argument("--weights-seed", type=int, default=0)
parser.add_argument("--order-seed", type=int, default=0)
parser.add_argument("--second-epoch-seed", type=int, default=0)
parser.add_argument("--digits", type=int)
parser.add_argument("--logged", choices=["loss", "running", "late", "twice", "first-shard"], default="loss")
parser.add_argument("--no-nudge", action="store_true")
parser.add_argument("--unseeded", action="store_true")


def train(*words: str) -> list[float]:
    """Train with these options. Returns the loss of each step as it is logged."""
    options = parser.parse_args(words)
    generator = np.random.default_rng(7)
    images = generator.normal(size=(options.examples, 5)).astype(options.dtype)
    labels = (images @ generator.normal(size=5) + generator.normal(size=options.examples) > 0).astype(options.dtype)
    if not options.no_nudge:
        images = nudge(images)
    weights_seed = None if options.unseeded else options.weights_seed
    weights = (0.1 * np.random.default_rng(weights_seed).normal(size=5)).astype(options.dtype)
    velocity = np.zeros_like(weights)
    losses: list[float] = []
    epoch = 0
    while len(losses) < options.steps:
        seed = options.order_seed + (options.second_epoch_seed if epoch else 0)
        order = np.random.default_rng([seed, epoch]).permutation(options.examples)
        for start in range(0, options.examples, options.batch):
            batch = order[start : start + options.batch]
            gradients, part_losses, shares = [], [], []
            for part in np.array_split(batch, options.shards):
                logits = images[part] @ weights
                residuals = 1 / (1 + np.exp(-logits)) - labels[part]
                gradients.append(images[part].T @ residuals / np.asarray(len(part), options.dtype))
                part_losses.append(np.log1p(np.exp(np.where(labels[part] > 0, -logits, logits))).mean(dtype=options.dtype))
                share = {"examples": len(part) / len(batch), "mean": 1 / options.shards, "sum": 1.0}[options.combine]
                shares.append(np.asarray(share, options.dtype))
            velocity = np.asarray(options.momentum, options.dtype) * velocity + sum(map(np.multiply, shares, gradients))
            weights = weights - np.asarray(options.rate, options.dtype) * velocity
            loss = sum(map(np.multiply, shares, part_losses)) / (options.shards if options.combine == "sum" else 1)
            losses.append(float(part_losses[0] if options.logged == "first-shard" else loss))
        epoch += 1
    losses = losses[: options.steps]
    if options.logged == "running":
        losses = (np.cumsum(losses) / np.arange(1, len(losses) + 1)).tolist()
    elif options.logged == "late":
        losses = [losses[0], *losses[:-1]]
    elif options.logged == "twice":
        losses = [2 * loss for loss in losses]
    if options.digits is not None:
        losses = [round(loss, options.digits) for loss in losses]
    return losses


if __name__ == "__main__":
    options, losses = parser.parse_args(), train(*sys.argv[1:])
    if options.log and options.log.endswith(".csv"):
        with Path(options.log).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("step", "loss"), *enumerate(losses, 1)])
    else:
        lines = "".join(f"{json.dumps({'step': step, 'loss': loss})}\n" for step, loss in enumerate(losses, 1))
        if options.log:
            Path(options.log).write_text(lines, encoding="utf-8")
        else:
            sys.stdout.write("training begins\n" + lines)
