"""DETR (Carion et al. 2020, arXiv:2005.12872): detection by a transformer that reads features of a ResNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from traincast.graph.zoo.parts.layers import check_divides, check_sizes
from traincast.graph.zoo.parts.pyramid import WIDTHS, Backbone, sides_of
from traincast.graph.zoo.traceable import Traceable


class PlacedAttention(nn.Module):  # type: ignore[misc]
    """Attention whose queries and keys, but not values, know their places (figure 10)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        self.out = nn.Linear(hidden, hidden)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``queries`` [batch, queries, hidden] attend to ``keys`` and ``values`` [batch, keys, hidden]."""
        pairs = ((self.q, queries), (self.k, keys), (self.v, values))
        q, k, v = (layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer, x in pairs)
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DetrLayer(nn.Module):  # type: ignore[misc]
    """Self-attention, attention to the encoder if ``crosses``, and an MLP, with the norm after each."""

    def __init__(self, hidden: int, heads: int, ffn: int, *, crosses: bool, dropout: float = 0.1) -> None:
        super().__init__()
        self.attention = PlacedAttention(hidden, heads)
        self.norm1 = nn.LayerNorm(hidden)
        self.cross = PlacedAttention(hidden, heads) if crosses else None
        self.norm2 = nn.LayerNorm(hidden) if crosses else None
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.norm3 = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, places: Tensor, memory: Tensor | None = None, memory_places: Tensor | None = None
    ) -> Tensor:
        """``x`` [batch, seq, hidden] to the same shape."""
        placed = x + places
        x = self.norm1(x + self.dropout(self.attention(placed, placed, x)))
        if self.cross is not None and self.norm2 is not None and memory is not None and memory_places is not None:
            x = self.norm2(x + self.dropout(self.cross(x + places, memory + memory_places, memory)))
        return self.norm3(x + self.dropout(self.down(self.dropout(functional.relu(self.up(x))))))


class DETR(nn.Module):  # type: ignore[misc]
    """ResNet-50, an encoder over its coarsest features, and a decoder of learned queries (figure 2)."""

    def __init__(
        self, *, layers: int, hidden: int, heads: int, ffn: int, queries: int, classes: int, places: int
    ) -> None:
        super().__init__()
        self.backbone = Backbone(frozen=True)
        self.enter = nn.Conv2d(WIDTHS[-1], hidden, 1)
        self.register_buffer("places", torch.empty(places, hidden), persistent=False)
        self.encoder = nn.ModuleList(DetrLayer(hidden, heads, ffn, crosses=False) for _ in range(layers))
        self.decoder = nn.ModuleList(DetrLayer(hidden, heads, ffn, crosses=True) for _ in range(layers))
        self.queries = nn.Embedding(queries, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.classes = nn.Linear(hidden, classes + 1)
        self.boxes = nn.Sequential(
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 4)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits and boxes of every decoder layer, ``[layers, batch, queries, …]``."""
        memory = self.enter(self.backbone(images)[-1]).flatten(2).transpose(1, 2)
        for layer in self.encoder:
            memory = layer(memory, self.places)
        queries = self.queries.weight.expand(images.shape[0], -1, -1)
        x, outputs = torch.zeros_like(queries), []
        for layer in self.decoder:
            x = layer(x, queries, memory, self.places)
            outputs.append(self.norm(x))
        every = torch.stack(outputs)
        return self.classes(every), self.boxes(every).sigmoid()


def _loss(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy and L1 of all layers' outputs; the matching of queries with boxes on the host is left out."""
    classes, boxes = outputs
    flat = classes.flatten(0, 2)
    entropy = functional.cross_entropy(flat, torch.empty(flat.shape[0], dtype=torch.int64, device=flat.device))
    return entropy + functional.l1_loss(boxes, torch.empty_like(boxes))


def detr(
    *,
    layers: int = 6,
    hidden: int = 256,
    heads: int = 8,
    ffn: int = 2048,
    queries: int = 100,
    classes: int = 91,
    size: str = "800x1344",
) -> Traceable:
    """DETR on ResNet-50: ``layers`` in encoder and decoder each, ``queries`` boxes of every image."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "queries": queries, "classes": classes}
    check_sizes("detr", sizes)
    check_divides("detr", whole=("hidden", hidden), parts=("heads", heads), remedy="choose heads that divide hidden")
    height, width = sides_of("detr", size, stride=32)
    with torch.device("meta"):
        module = DETR(
            layers=layers,
            hidden=hidden,
            heads=heads,
            ffn=ffn,
            queries=queries,
            classes=classes,
            places=height * width // 32**2,
        )

    def images(batch: int) -> tuple[Tensor, ...]:
        like = module.enter.weight
        return (torch.empty(batch, 3, height, width, dtype=like.dtype, device=like.device),)

    return Traceable(module=module, inputs=images, loss=_loss)
