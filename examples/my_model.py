"""Forecasts your own model. On the command line, from the root of the repository:

traincast predict examples.my_model:make --cluster dgx-a100 --strategy dp=4,tp=2 --global-batch 64
"""

import torch
from torch import nn

from traincast import predict

WIDTH, LAYERS, VOCAB, TOKENS = 2048, 12, 50_000, 512


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def make() -> tuple[nn.Module, torch.Tensor]:
    """Return the module, and example inputs whose first dim is the batch."""
    layers = [Block() for _ in range(LAYERS)]
    module = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *layers, nn.Linear(WIDTH, VOCAB))
    return module, torch.zeros(1, TOKENS, dtype=torch.long)


if __name__ == "__main__":
    report = predict("my_model:make", cluster="dgx-a100", strategy="dp=4,tp=2", global_batch=64).report
    print(
        f"{report.num_parameters:,} parameters, step {report.step_s * 1e3:.1f} ms, {report.tokens_per_s:,.0f} tokens/s"
    )
    print("most of the time:", ", ".join(f"{e.label} {e.share:.0%}" for e in report.critical_path[:3]))
