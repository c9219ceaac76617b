"""ONNX files as models: the file gives the forward pass, autograd derives the backward pass."""

from __future__ import annotations

from traincast.graph.onnx.load import load_onnx

__all__ = ["load_onnx"]
