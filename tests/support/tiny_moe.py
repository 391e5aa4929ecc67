"""A mixture-of-experts model of a few megabytes, made on the spot from its configuration and random weights.

Run in the engine's environment: ``python tests/support/tiny_moe.py FOLDER TOKENIZER``. Tokenizer and chat template are
those of the folder ``TOKENIZER``. What it says means nothing; how it is computed is what the tests look at.
"""

import shutil
import sys
from pathlib import Path


def make(folder: Path, tokenizer: Path) -> None:
    """Write the model: Qwen3's architecture with 8 experts in 2 layers, 2 of them per token, seeded weights."""
    import torch  # noqa: PLC0415 - present in the engine's environment only
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: PLC0415 - as torch

    vocabulary = AutoTokenizer.from_pretrained(tokenizer)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=2048,
        bos_token_id=vocabulary.bos_token_id,
        eos_token_id=vocabulary.eos_token_id,
        # Ten times the usual spread: small weights would make all tokens equally likely.
        initializer_range=0.2,
    )
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tokenizer / name, folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]))
