"""A small training in PyTorch, as somebody's script. Options are what right pairs do otherwise, and what plants a cause."""

import argparse
import json
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from convtwins.ulp import nudge

parser = argparse.ArgumentParser()
parser.add_argument("log")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--parts", type=int, default=1, help="micro-batches of an update (gradient accumulation)")
parser.add_argument("--undivided", action="store_true", help="plants: their losses are added up, not averaged")
parser.add_argument("--dtype", default="float32")
parser.add_argument("--examples", type=int, default=192)
parser.add_argument("--rate", type=float, default=0.02)
options = parser.parse_args()
dtype = getattr(torch, options.dtype)
torch.set_num_threads(1)

generator = torch.Generator().manual_seed(0)
images = nudge(torch.randn(options.examples, 12, generator=generator).to(dtype))
labels = (images[:, :4].sum(1) + torch.randn(options.examples, generator=generator) > 0).long()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2)).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=0.9)
order = torch.Generator().manual_seed(2)
lines: list[str] = []
for epoch in range(3):
    examples = torch.randperm(options.examples, generator=order).tolist()
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, sampler=examples, num_workers=options.workers)
    for batch, targets in loader:
        optimizer.zero_grad()
        total = 0.0
        for part, part_targets in zip(batch.chunk(options.parts), targets.chunk(options.parts), strict=True):
            loss = nn.functional.cross_entropy(model(part), part_targets)
            share = 1.0 if options.undivided else len(part) / len(batch)
            (loss * share).backward()
            total += loss.item() * len(part) / len(batch)
        optimizer.step()
        lines.append(json.dumps({"step": len(lines) + 1, "epoch": epoch, "loss": total}))
Path(options.log).write_text("\n".join(lines), encoding="utf-8")
