"""``traincast models | clusters | devices | runtimes``: the entries of the catalog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import click

from traincast.ask import Option
from traincast.cli import options
from traincast.cli.derive import asks
from traincast.cli.options import Shown
from traincast.cli.output import console, print_json, print_table
from traincast.cluster.calibration import Calibration
from traincast.cluster.hardware import Cluster, Device, Link
from traincast.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class Entry(Shown):
    """An entry of the catalog, or all."""

    name: Annotated[str | None, Option("The name of an entry; all are listed if it is left out.")] = None


def _show_one(title: str, facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    print_table(title, ("field", "value"), [(key, _text(value)) for key, value in facts.items()])


def _flat(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with those of inner tables beside the others: ``launches.operator``."""
    found: dict[str, Any] = {}
    for key, value in facts.items():
        found |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_text(v)}" for k, v in value.items()) or "–"
    if isinstance(value, list | tuple):
        return ", ".join(_text(v) for v in value) or "–"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value not in ("", None) else "–"


@click.command(short_help="List the models of the zoo, or show one.", epilog=options.example("models llama3-8b"))
@asks(Entry)
def models(entry: Entry) -> None:
    """List the models of the zoo, or show the model NAME."""
    name, as_json = entry.name, entry.as_json
    from traincast.graph import shipped, zoo

    def counted(card: zoo.ModelCard) -> int | None:
        return shipped.index().num_parameters(card.family, card.parameters)

    if name is not None:
        card = zoo.card(name)
        facts: dict[str, Any] = {
            "name": card.name,
            "family": card.family,
            "description": card.description,
            "parameters": counted(card),
            "dimensions": dict(card.parameters),
            "published": dict(card.published),
        }
        _show_one(card.name, facts, as_json=as_json)
        return
    cards = [zoo.card(n) for n in zoo.names()]
    if as_json:
        print_json(
            [
                {"name": c.name, "family": c.family, "description": c.description, "parameters": counted(c)}
                for c in cards
            ]
        )
        return
    rows = [(c.name, c.family, _parameters(counted(c) or c.published.get("parameters")), c.description) for c in cards]
    print_table(f"{len(rows)} models", ("model", "family", "parameters", "description"), rows, right=(2,))
    more = sorted({*zoo.known_names()} - {*zoo.names()})
    console().print(f"and, by their released dimensions: {', '.join(more)}", highlight=False)


def _parameters(value: object) -> str:
    return format_count(float(value)) if isinstance(value, int | float) else "–"


@click.command(
    short_help="List the known devices, or show one.", epilog=options.example("devices h100-sxm5-80gb --json")
)
@asks(Entry)
def devices(entry: Entry) -> None:
    """List the devices of the catalog, or show the device NAME, which may be a .toml file."""
    name, as_json = entry.name, entry.as_json
    from traincast.cluster import device_names, load_device

    if name is not None:
        device = load_device(name)
        _show_one(device.name, _fields(device), as_json=as_json)
        return
    known = [load_device(n) for n in device_names()]
    if as_json:
        print_json([_fields(d) for d in known])
        return
    rows = [
        (
            d.name,
            d.architecture,
            f"{max(map(d.peak, ('bf16', 'fp16'))) / 1e12:.0f}",
            format_bytes(d.memory_bytes),
            f"{d.memory_bandwidth / 1e12:.2f}",
            f"{d.tdp_w:.0f} W",
            f"${d.price_per_hour:.2f}",
        )
        for d in known
    ]
    columns = ("device", "architecture", "half TFLOP/s", "memory", "TB/s", "power", "per hour")
    print_table(f"{len(rows)} devices", columns, rows, right=(2, 3, 4, 5, 6))


def _part(part: Cluster) -> str:
    """Return the nodes and the link of a part in a few words."""
    link = f"{part.nics_per_node} × {part.inter_node.bandwidth * 8 / 1e9:g} Gb/s"
    return f"{part.num_nodes} × {part.devices_per_node} {part.device.name} ({link})"


@click.command(
    short_help="List the known machines and fitted clusters, or show one.",
    epilog=options.example("clusters dgx-h100:4"),
)
@asks(Entry)
def clusters(entry: Entry) -> None:
    """List the machines of the catalog and the clusters fitted to published runs, or show one.

    NAME[:NODES] may be a .toml file.
    """
    name, as_json = entry.name, entry.as_json
    from traincast.cluster import cluster_names, load_cluster, node_names

    def facts(cluster: Cluster) -> dict[str, Any]:
        return {**_fields(cluster), "num_devices": cluster.num_devices}

    if name is not None:
        cluster = load_cluster(name)
        shown = facts(cluster)
        if shown["calibration"] and not as_json:  # too long for a table; --json has it
            shown["calibration"].pop("correction")
        if not as_json:
            shown["parts"] = [_part(part) for part in cluster.parts]
        _show_one(cluster.name, shown, as_json=as_json)
        return
    known = [load_cluster(n) for n in (*cluster_names(), *node_names())]
    if as_json:
        print_json([facts(c) for c in known])
        return
    machines = [c for c in known if c.calibration is None]
    rows = [
        (
            c.name,
            f"{c.num_nodes} × {c.devices_per_node} {c.device.name}",
            f"{c.intra_node.name} {c.intra_node.bandwidth / 1e9:.0f} GB/s",
            f"{c.nics_per_node} × {c.inter_node.bandwidth * 8 / 1e9:.0f} Gb/s",
            f"${c.price_per_node_hour:.2f}",
        )
        for c in machines
    ]
    columns = ("machine", "nodes × devices", "inside a node, per device", "between nodes", "node-hour")
    print_table(f"{len(rows)} machines", columns, rows, right=(4,))
    fitted = [(c, c.calibration) for c in known if c.calibration is not None]
    rows = [
        (
            c.name,
            f"{c.num_nodes} × {c.devices_per_node}",
            ", ".join(found.models) or "all",
            f"{found.runs}",
            f"{found.low:.2f} … {found.high:.2f}",
        )
        for c, found in fitted
    ]
    columns = ("fitted cluster", "nodes", "models", "runs", "90 % of runs take")
    print_table(f"{len(rows)} clusters fitted to published runs", columns, rows, right=(3,))
    console().print("the last column is a multiple of the forecast, for runs like the measured ones", highlight=False)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as plain values: links in full, a device by its name."""
    found: dict[str, Any] = {}
    for field in fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Device):
            item = item.name
        elif isinstance(item, Link | Calibration):
            item = asdict(item)
        elif isinstance(item, Mapping):
            item = dict(item)
        elif field.name in ("parts", "hosts"):
            item = [_fields(part) for part in item]
        found[field.name] = item
    return found


@click.command(
    short_help="List the known training frameworks, or show one.", epilog=options.example("runtimes megatron")
)
@asks(Entry)
def runtimes(entry: Entry) -> None:
    """List the runtimes of the catalog, or show the runtime NAME, which may be a .toml file.

    A runtime describes how a training framework runs a step: what it fuses, overlaps and launches.
    """
    name, as_json = entry.name, entry.as_json
    from traincast.strategy import load_runtime, runtime_names

    if name is not None:
        facts = load_runtime(name).to_dict()
        _show_one(facts["name"], facts if as_json else _flat(facts), as_json=as_json)
        return
    known = [load_runtime(n) for n in runtime_names()]
    if as_json:
        print_json([r.to_dict() for r in known])
        return
    print_table(f"{len(known)} runtimes", ("runtime", "description"), [(r.name, r.description) for r in known])
