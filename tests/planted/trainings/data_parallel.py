"""The training of `one_process.py` with DistributedDataParallel on two processes, and what plants a cause in it.

`python -m torch.distributed.run --standalone --nproc-per-node=2 data_parallel.py LOG`
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from convtwins.ulp import nudge

parser = argparse.ArgumentParser()
parser.add_argument("log")
parser.add_argument("--examples", type=int, default=192)
parser.add_argument("--rate", type=float, default=0.02)
parser.add_argument("--plant", choices=["", "sum", "mean of means", "one order"], default="")
options = parser.parse_args()
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()

generator = torch.Generator().manual_seed(0)
images = nudge(torch.randn(options.examples, 12, generator=generator))
labels = (images[:, :4].sum(1) + torch.randn(options.examples, generator=generator) > 0).long()
torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2)))
optimizer = torch.optim.SGD(model.parameters(), options.rate, momentum=0.9)
order = torch.Generator().manual_seed(2)
permutations: list[torch.Tensor] = []
lines: list[str] = []
for epoch in range(3):
    permutations.append(torch.randperm(options.examples, generator=order))
    examples = permutations[0 if options.plant == "one order" else epoch]
    for start in range(0, options.examples, 16):
        batch = examples[start : start + 16]
        part = batch.tensor_split(world)[rank]
        # DistributedDataParallel takes the mean over processes. Unequal parts need their share.
        share = world * len(part) / len(batch)
        if options.plant == "mean of means":
            share = 1.0
        elif options.plant == "sum":
            share = float(world)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[part]), labels[part])
        (loss * share).backward()
        optimizer.step()
        total = loss.detach() * len(part) / len(batch)
        dist.all_reduce(total)
        lines.append(json.dumps({"step": len(lines) + 1, "epoch": epoch, "loss": total.item()}))
if rank == 0:
    Path(options.log).write_text("\n".join(lines), encoding="utf-8")
dist.destroy_process_group()
