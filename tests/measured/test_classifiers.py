"""Decoders that classify texts have a head of a few classes."""

from __future__ import annotations

from tests.measured.asking import dp_request
from tests.measured.test_recipes import GAUDI
from traincast.tables import Row

QWEN: Row = {**GAUDI, "model": "Qwen2_7B", "seq_len": 128, "batch_per_gpu": 2, "global_batch": 16}
VOCAB, HIDDEN = 152_064, 3584


def test_a_dataset_of_classes_replaces_the_projection_to_the_vocabulary() -> None:
    text = dp_request({**QWEN, "notes": "a short fine-tune on wikitext"}).graph
    classes = dp_request({**QWEN, "notes": "a short fine-tune on mrpc"}).graph
    assert text.num_parameters - classes.num_parameters == (VOCAB - 2) * HIDDEN
    assert not any(VOCAB in t.shape for op in classes.operators if "head" in op.scope for t in op.inputs)
    assert any(VOCAB in t.shape for op in classes.operators if "embedding" in op.scope for t in op.inputs)
    assert classes.name == "qwen2-7b:classes=2"


def test_a_model_whose_head_is_its_embedding_or_a_pooler_stays_as_it_is() -> None:
    for name in ("gpt2", "bert_large_uncased"):
        graph = dp_request({**QWEN, "model": name, "notes": "a short fine-tune on mrpc"}).graph
        assert "classes=2" not in graph.name
