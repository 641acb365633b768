"""Twenty architectures of transformers, tiny and with random weights, train and generate on the device as on the CPU."""

import copy
import logging

import pytest
import torch

tf = pytest.importorskip("transformers", exc_type=ImportError)

from .step import Case, check, to  # noqa: E402

logging.getLogger("transformers").setLevel(logging.ERROR)  # on special tokens outside of a vocabulary so small

VOCABULARY, WIDTH, BATCH, LENGTH = 99, 32, 2, 12
ENCODER = dict(
    vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=64,
)  # fmt: skip
DECODER = dict(ENCODER, num_key_value_heads=2)
SEQ2SEQ = dict(
    vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64,
)  # fmt: skip
VISION = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8)
AUDIO = dict(
    vocab_size=32, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    conv_dim=(16, 16, 16), conv_stride=(5, 2, 2), conv_kernel=(10, 3, 3), num_feat_extract_layers=3,
    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, ctc_loss_reduction="mean", mask_time_prob=0.0,
)  # fmt: skip
RELATIVE = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm")


def tokens(length=LENGTH):
    return torch.randint(3, VOCABULARY, (BATCH, length))


def padded():
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 8:] = 0
    return dict(input_ids=tokens(), attention_mask=mask)


def causal():
    ids = tokens()
    return dict(input_ids=ids, labels=ids)


def causal_padded():
    batch = padded()
    return dict(batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100))


def masked():
    return dict(padded(), labels=tokens().masked_fill(torch.rand(BATCH, LENGTH) < 0.5, -100))


def classify():
    return dict(padded(), labels=torch.randint(2, (BATCH,)))


def detect():
    return dict(padded(), labels=torch.randint(2, (BATCH, LENGTH)))


def translate():
    return dict(padded(), labels=tokens(7))


def images():
    return torch.randn(BATCH, 3, 32, 32)


# name: (class, configuration, batch)
MODELS = {
    "bert": ("BertForMaskedLM", ENCODER, masked),
    "roberta": ("RobertaForSequenceClassification", ENCODER, classify),
    "albert": ("AlbertForMaskedLM", dict(ENCODER, embedding_size=16), masked),
    "distilbert": (
        "DistilBertForSequenceClassification",
        dict(vocab_size=VOCABULARY, dim=WIDTH, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=64),
        classify,
    ),
    "electra": ("ElectraForPreTraining", dict(ENCODER, embedding_size=16), detect),
    "deberta-v2": ("DebertaV2ForMaskedLM", dict(ENCODER, **RELATIVE), masked),
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=64), causal),
    "gpt_neox": ("GPTNeoXForCausalLM", ENCODER, causal),
    "opt": (
        "OPTForCausalLM",
        dict(
            vocab_size=VOCABULARY, hidden_size=WIDTH, word_embed_proj_dim=WIDTH, num_hidden_layers=2,
            num_attention_heads=4, ffn_dim=64, max_position_embeddings=64,
        ),
        causal_padded,
    ),
    "llama": ("LlamaForCausalLM", DECODER, causal),
    "mistral": ("MistralForCausalLM", dict(DECODER, sliding_window=6), causal_padded),
    "qwen2": ("Qwen2ForCausalLM", DECODER, causal_padded),
    "gemma": ("GemmaForCausalLM", dict(DECODER, head_dim=8), causal),
    "mamba": ("MambaForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=8, num_hidden_layers=2), causal),
    "t5": (
        "T5ForConditionalGeneration",
        dict(vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0),
        translate,
    ),
    "bart": ("BartForConditionalGeneration", dict(SEQ2SEQ, max_position_embeddings=64), translate),
    "whisper": (
        "WhisperForConditionalGeneration",
        dict(
            SEQ2SEQ, num_mel_bins=16, max_source_positions=20, max_target_positions=30, pad_token_id=0, bos_token_id=1,
            eos_token_id=2, decoder_start_token_id=1,
        ),
        lambda: dict(input_features=torch.randn(BATCH, 16, 40), labels=tokens(6)),
    ),
    "clip": (
        "CLIPModel",
        dict(text_config=ENCODER, vision_config=VISION, projection_dim=16),
        lambda: dict(padded(), pixel_values=images(), return_loss=True),
    ),
    "vit": ("ViTForImageClassification", VISION, lambda: dict(pixel_values=images(), labels=torch.randint(2, (BATCH,)))),
    "wav2vec2": (
        "Wav2Vec2ForCTC",
        AUDIO,
        lambda: dict(input_values=torch.randn(BATCH, 800), labels=torch.randint(1, 32, (BATCH, 5))),
    ),
}  # fmt: skip


def build(name):
    cls = getattr(tf, MODELS[name][0])
    return cls(cls.config_class(**MODELS[name][1]))


def case(name):
    return Case(
        build=lambda: build(name),
        batch=MODELS[name][2],
        loss=lambda module, batch: module(**batch).loss,
        optimizer="adamw",
    )


@pytest.mark.parametrize("name", MODELS)
def test_training_step(name, device):
    check(case(name), device)


@pytest.mark.parametrize("how", ["autocast", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_bfloat16(name, how, device, native):
    """The loss to bfloat16's precision, and gradients that point where the CPU's do."""
    torch.manual_seed(0)
    host, batch = build(name).train(), MODELS[name][2]()
    if how == "bfloat16":
        host = host.bfloat16()
    module = copy.deepcopy(host).to(device)

    def step(module, batch):
        torch.manual_seed(1)
        with torch.autocast(module.device.type, torch.bfloat16, enabled=how == "autocast"):
            loss = module(**batch).loss
        loss.backward()
        gradients = [p.grad.float().cpu().flatten() for p in module.parameters() if p.grad is not None]
        return loss.float().cpu(), torch.cat(gradients)

    expected, expected_gradient = step(host, batch)
    with native():
        loss, gradient = step(module, to(batch, device))
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    assert torch.cosine_similarity(gradient, expected_gradient, dim=0) > 0.999


def test_gradient_checkpointing(device):
    def checkpointed():
        module = build("llama")
        module.gradient_checkpointing_enable()
        return module

    check(Case(checkpointed, causal, lambda module, batch: module(**batch).loss, "adamw"), device)


SAMPLING = {
    "greedy": dict(do_sample=False),
    "sampled": dict(do_sample=True),
    "top_k_top_p": dict(do_sample=True, top_k=20, top_p=0.9, temperature=0.7),
    "beam": dict(do_sample=False, num_beams=3),
    "static_cache": dict(do_sample=False, cache_implementation="static", disable_compile=True),
}


@pytest.mark.parametrize(
    ("name", "sampling"),
    [(name, sampling) for name in ("gpt2", "llama", "t5") for sampling in ("greedy", "sampled")]
    + [("llama", "top_k_top_p"), ("llama", "static_cache"), ("t5", "beam")],
)
def test_generation(name, sampling, device, native):
    """Token for token; the random numbers come from torch's generator on both sides."""
    torch.manual_seed(0)
    module, ids = build(name).eval(), tokens(5)
    options = dict(max_new_tokens=8, pad_token_id=0, eos_token_id=1, **SAMPLING[sampling])

    def generate():
        torch.manual_seed(1)
        place = next(module.parameters()).device
        ids_here = ids.to(place)
        return module.generate(ids_here, attention_mask=torch.ones_like(ids_here), **options)

    expected = generate()
    module.to(device)
    with native():
        actual = generate()
    assert actual.device.type == device.type
    assert actual.tolist() == expected.tolist()
