"""Turn a GGUF checkpoint into a plain one that vLLM loads; needs the optional packages gguf and accelerate."""

from __future__ import annotations

from pathlib import Path


def dequantize(source: Path, target: Path) -> None:
    """Write safetensors (bf16), configuration and tokenizer of `source` into the folder `target`.

    Raises ImportError, naming the package, where one is missing.
    """
    import gguf  # noqa: F401, PLC0415 - named here because transformers' own message does not say which package
    import torch  # noqa: PLC0415 - heavy, and only a first use needs it
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # packed weights cannot be saved as safetensors
    )
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
