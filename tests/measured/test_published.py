"""Published models by the names that tables give them, and prediction of further tokens in measured rows."""

from __future__ import annotations

import pytest

from traincast import OperatorGraph, capture, load_runtime
from traincast.graph import zoo
from traincast.measured.models.language import further_tokens, graph_of, published_spec, spellings, zoo_name


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("llama-3.1-405b", "llama3-405b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "llama3-70b"),
        ("Llama 3.3 70B", "llama3-70b"),
        ("DeepSeek-V3 671B", "deepseek-v3"),
        ("DeepSeekV3 (w/o MTP)", "deepseek-v3"),
        ("GPT-NeoX-20B", "neox-20b"),
        ("Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Kimi-K2", "kimi-k2"),
        ("llama-3.9-8b", None),
        ("gpt3-1.3b", "gpt3-1.3b"),
        ("GPT3_1_3B", "gpt3-1.3b"),
        ("gpt3-13b", "gpt3-13b"),
        ("GPT-3 13B", "gpt3-13b"),
        ("opt-1.3b", "opt-1.3b"),
        ("opt-13b", None),
    ],
)
def test_other_names_of_models_of_the_zoo_are_known(written: str, name: str | None) -> None:
    assert zoo_name(written) == name


@pytest.mark.long(but=3)
@pytest.mark.parametrize(
    ("written", "billions"),
    [
        ("Grok-1", 314),
        ("databricks/DBRX-Instruct", 132),
        ("qwen2.5-72b", 72.7),
        ("Nemotron-4 340B", 341),
        ("BLOOM-176B", 176.2),
        ("OPT-175B", 175),
        ("facebook/opt-13b", 12.85),
        ("opt-2.7b", 2.65),
        ("EleutherAI/gpt-j-6b", 6.05),
        ("tiiuae/falcon-40b", 41.3),
        ("Mistral-Large-2", 123),
        ("Pythia 6.9B", 6.86),
    ],
)
def test_published_models_have_as_many_parameters_as_published(written: str, billions: float) -> None:
    spec = published_spec(written)
    assert spec is not None
    parameters = sum(p.numel() for p in zoo.build(spec).module.parameters())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_name_that_nobody_published_is_not_known() -> None:
    assert published_spec("qwen2.5-71b") is None
    assert spellings("org/My-Model-Chat") == ["orgmymodelchat", "orgmymodel", "mymodelchat", "mymodel"]


@pytest.mark.parametrize(
    ("written", "runtime", "trained"),
    [
        ("DeepSeek-V3", "megatron-bridge", True),
        ("DeepSeek-V3 (w/o MTP)", "megatron-bridge", False),
        ("DeepSeek-V3", "megatron", False),
        ("DeepSeek-V3 (MTP)", "megatron", True),
        ("Qwen3-30B-A3B", "megatron-bridge", False),
    ],
)
def test_further_tokens_are_predicted_if_the_row_or_the_recipe_says_so(
    written: str, runtime: str, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    graph = capture("gpt2", use_cache=True)

    def model(spec: str, _seq: int | None) -> OperatorGraph:
        asked.append(spec)
        return graph

    monkeypatch.setattr("traincast.measured.models.language.model", model)
    assumed: list[str] = []
    further_tokens({"model": written, "seq": 4096.0}, graph, load_runtime(runtime), assumed)
    assert asked == (["gpt2+mtp=1"] if trained else [])
    silent = "MTP" in written or "Qwen" in written
    assert len(assumed) == (0 if silent else 1)


def test_stated_dimensions_of_a_published_model_are_that_model() -> None:
    row = {"model": "Nemotron-4 15B", "n_layers": 32, "hidden": 6144, "heads": 48, "kv_heads": 8, "ffn": 24576}
    graph = graph_of({**row, "vocab": 256000, "seq": 4096}, [])
    assert graph.num_parameters == pytest.approx(15.63e9, rel=0.001)  # two tables; 14.06 with one
    other = graph_of({**row, "n_layers": 4, "hidden": 512, "ffn": 2048, "heads": 8, "vocab": 1000, "seq": 64}, [])
    assert other.num_parameters < 2e7  # what a row states counts, whatever its name
