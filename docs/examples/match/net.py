"""A small CNN in PyTorch."""

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.dense = nn.Linear(16 * 7 * 7, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.relu(self.conv2(x))
        return self.dense(self.dropout(torch.flatten(x, 1)))
