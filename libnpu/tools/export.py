"""`npu export MODEL -o FILE`: the same model with its weights in a file beside it, each at a multiple of so many bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from libnpu.tools import source
from libnpu.tools.console import print_json
from libnpu.tools.files import check_targets, write_file
from libnpu.tools.mem_analyze import ALIGN
from libnpu.tools.weight_places import check_valid, weights_of

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the ONNX file to write; its weights go to FILE.data"
    )
    parser.add_argument(
        "--align", type=source.positive, metavar="BYTES", default=ALIGN, help=f"of each weight (default {ALIGN})"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Write the model and its weights, with zeros between."""
    from onnx import TensorProto, numpy_helper

    from libnpu.compiler.frontend.source import load_external, parse

    source.check_model(options.model)
    weights = f"{options.output}.data"
    check_targets({"--output": options.output, "the weights": weights}, source.files_read(options))
    model = parse(options.model)
    load_external(model, options.model)
    check_valid(model)
    tensors = [tensor for _, tensor in weights_of(model.graph)]
    data, padding = bytearray(), 0
    for tensor in tensors:
        if not tensor.HasField("raw_data"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
        content = tensor.raw_data
        gap = -len(data) % options.align
        data += bytes(gap)
        padding += gap
        kept = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        kept.data_location = TensorProto.EXTERNAL
        for key, value in (("location", Path(weights).name), ("offset", len(data)), ("length", len(content))):
            kept.external_data.add(key=key, value=str(value))
        tensor.CopyFrom(kept)
        data += content
    write_file(weights, bytes(data))
    write_file(options.output, model.SerializeToString())
    found = {
        "model": options.output,
        "weights": weights,
        "tensors": len(tensors),
        "bytes": len(data),
        "padding": padding,
    }
    if options.json:
        print_json(found)
    else:
        print(
            f"{options.output}: {len(tensors)} weights in {weights}, {len(data)} bytes, of which {padding} are padding"
        )
    return 0
