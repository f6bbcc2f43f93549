"""Text: decoders, encoders, encoders with decoders, and what is neither."""
import torch
import transformers as hf
from case import CLASSES, LENGTH, VOCAB, Case, language, texts, tokens
from torch import nn
from torch.nn import functional as F

SMALL = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def gpt2():
    return hf.GPT2LMHeadModel(hf.GPT2Config(
        vocab_size=VOCAB, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, use_cache=False, bos_token_id=1, eos_token_id=2))


def llama():
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, **ENDS, num_key_value_heads=1, intermediate_size=32,
                                              max_position_embeddings=32, use_cache=False))


def qwen2():
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**SMALL, num_key_value_heads=1, intermediate_size=32, use_cache=False,
                                              bos_token_id=1, eos_token_id=2, max_position_embeddings=32))


def gemma():
    return hf.GemmaForCausalLM(hf.GemmaConfig(**SMALL, **ENDS, num_key_value_heads=1, intermediate_size=32, head_dim=8,
                                              max_position_embeddings=32, use_cache=False))


def neox():
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SMALL, intermediate_size=32, max_position_embeddings=32,
                                                  use_cache=False, bos_token_id=1, eos_token_id=2))


def opt():
    return hf.OPTForCausalLM(hf.OPTConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, ffn_dim=32, **ENDS,
                                          num_attention_heads=2, max_position_embeddings=32, dropout=0.0,
                                          word_embed_proj_dim=16, use_cache=False))


def bloom():
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=2, use_cache=False,
                                              bos_token_id=1, eos_token_id=2, pad_token_id=0))


def falcon():
    return hf.FalconForCausalLM(hf.FalconConfig(**SMALL, alibi=True, new_decoder_architecture=False, use_cache=False,
                                                multi_query=False, bos_token_id=1, eos_token_id=2))


def bert():
    return hf.BertForMaskedLM(hf.BertConfig(**SMALL, **QUIET, intermediate_size=32, max_position_embeddings=32))


def roberta():
    return hf.RobertaForSequenceClassification(hf.RobertaConfig(
        **SMALL, **QUIET, intermediate_size=32, max_position_embeddings=32, num_labels=CLASSES, pad_token_id=1))


def electra():
    return hf.ElectraForTokenClassification(hf.ElectraConfig(
        **SMALL, **QUIET, embedding_size=8, intermediate_size=32, max_position_embeddings=32, num_labels=VOCAB))


def distilbert():
    return hf.DistilBertForSequenceClassification(hf.DistilBertConfig(
        vocab_size=VOCAB, dim=16, hidden_dim=32, n_layers=2, n_heads=2, max_position_embeddings=32, dropout=0.0,
        attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=CLASSES))


def longformer():
    return hf.LongformerForSequenceClassification(hf.LongformerConfig(
        **SMALL, **QUIET, intermediate_size=32, max_position_embeddings=34, num_labels=CLASSES, attention_window=4,
        pad_token_id=1))


def albert():
    return hf.AlbertForMaskedLM(hf.AlbertConfig(**SMALL, **QUIET, embedding_size=8, intermediate_size=32,
                                                max_position_embeddings=32))


def deberta():
    return hf.DebertaForMaskedLM(hf.DebertaConfig(
        **SMALL, **QUIET, intermediate_size=32, max_position_embeddings=32, type_vocab_size=0, relative_attention=True,
        pos_att_type=["c2p", "p2c"]))


def t5():
    return hf.T5ForConditionalGeneration(hf.T5Config(
        vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0, use_cache=False,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0))


def bart():
    return hf.BartForConditionalGeneration(hf.BartConfig(
        vocab_size=VOCAB, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_position_embeddings=32, dropout=0.0, use_cache=False,
        decoder_start_token_id=2, forced_eos_token_id=None, **ENDS))


def marian():
    return hf.MarianMTModel(hf.MarianConfig(
        vocab_size=VOCAB, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, d_model=16, max_position_embeddings=32, dropout=0.0, use_cache=False,
        pad_token_id=0, eos_token_id=2, decoder_start_token_id=0))


def mamba():
    return hf.MambaForCausalLM(hf.MambaConfig(
        vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=2, conv_kernel=3, time_step_rank=2,
        use_cache=False, use_mambapy=False, pad_token_id=0, bos_token_id=0, eos_token_id=0))


class FNet(nn.Module):
    """Fourier transforms over features and places in the place of attention."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            x = self.a(x + torch.fft.fftn(x, dim=(1, 2)).real)
            return self.b(x + self.down(F.gelu(self.up(x))))

    def __init__(self):
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, 16), nn.Parameter(torch.randn(LENGTH, 16) / 4)
        self.blocks = nn.Sequential(FNet.Block(16), FNet.Block(16))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids):
        return self.head(self.blocks(self.table(input_ids) + self.places).mean(1))


class Experts(nn.Module):
    """A mixture of experts with a static capacity: each expert takes its best tokens."""

    def __init__(self, experts=3, capacity=6, width=16):
        super().__init__()
        self.capacity = capacity
        self.table, self.router = nn.Embedding(VOCAB, width), nn.Linear(width, experts, bias=False)
        self.places = nn.Parameter(torch.randn(LENGTH, width) / 4)  # without them equal tokens have equal gates
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) / 4)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) / 6)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, input_ids):
        x = self.table(input_ids) + self.places
        gates = self.router(x).softmax(-1).transpose(1, 2)                   # [B,E,T]
        weight, chosen = gates.topk(self.capacity, dim=-1)                   # [B,E,C]
        index = chosen[..., None].expand(-1, -1, -1, x.shape[-1])
        taken = x[:, None].expand(-1, gates.shape[1], -1, -1).gather(2, index)
        y = F.gelu(torch.einsum("becd,edf->becf", taken, self.up))
        y = torch.einsum("becf,efd->becd", y, self.down) * weight[..., None]
        out = torch.zeros_like(x).scatter_add(1, index.flatten(1, 2), y.flatten(1, 2))
        return self.head(x + out)


def two_texts(samples):
    return {"input_ids": tokens(samples), "decoder_input_ids": tokens(samples), "labels": tokens(samples)}


CASES = {
    "GPT-2": Case(gpt2, language, output="logits", ranks=True, quick="dynamo"),
    "Llama": Case(llama, language, output="logits", ranks=True),
    "Qwen2": Case(qwen2, language, output="logits"),
    "Gemma": Case(gemma, language, output="logits"),
    "GPT-NeoX": Case(neox, language, output="logits"),
    "OPT": Case(opt, language, output="logits"),
    "BLOOM": Case(bloom, language, output="logits"),
    "Falcon (alibi)": Case(falcon, language, output="logits"),
    "Mamba": Case(mamba, language, output="logits"),
    "BERT": Case(bert, language, output="logits", ranks=True),
    "RoBERTa": Case(roberta, texts, output="logits"),
    "ELECTRA": Case(electra, language, output="logits"),
    "DistilBERT": Case(distilbert, texts, output="logits"),
    "Longformer": Case(longformer, texts, output="logits", beyond={
        "dynamo": "it decides by values"}),
    "ALBERT": Case(albert, language, output="logits"),
    "DeBERTa": Case(deberta, language, output="logits"),
    "T5": Case(t5, two_texts, output="logits", quick="torchscript", beyond={"dynamo": "PyTorch's exporter fails in a view"}),
    "BART": Case(bart, two_texts, output="logits"),
    "Marian": Case(marian, two_texts, output="logits"),
    "FNet": Case(FNet, texts, quick="dynamo", beyond={"torchscript": "has no Fourier transforms"}),
    "mixture of experts": Case(Experts, language, ranks=True, quick="torchscript"),
}
