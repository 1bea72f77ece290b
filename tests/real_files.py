"""Stand-ins in the formats of the scale real: images, networks and tokenizers as released, posed questions."""

import bz2
import io
import json
import struct
import tarfile

import numpy as np
import onnx
import torch
import transformers
from PIL import Image
from tokenizers import pre_tokenizers

from flexround.models import mobilenetv2, transformer
from synthetic import tokenizers

CLASSES = ("ant", "bee", "cat", "dog", "elk")
TOKENS = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), " ", "a", "b", "c", "ab", " a"]
TOKENS += ["abc", " ab", "o", "n", "ce", "e", "once", "on"]
LLAMA = {
    "vocab_size": len(TOKENS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1.0e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MERGES = ["Ġ a", "a b", "ab c", "o n", "c e", "on ce"]
BPE = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
BPE += [merge.replace(" ", "") for merge in MERGES]
GGUF = LLAMA | {"vocab_size": len(BPE), "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 128}
GGUF["rms_norm_eps"] = 9.999999747378752e-06  # GGUF has it as float32
GGUF["rope_parameters"] = {"rope_type": "default", "rope_theta": 100000.0}
POSED = {  # a question of each data set as the files of the scale real have it
    "boolq": {"query": "Passage: Rain is wet.\nQuestion: is rain wet?", "choices": ["no", "yes"], "gold": 1},
    "piqa": {"query": "Question: dry hair\n", "choices": ["use a towel", "use a fork"], "gold": 0},
    "hellaswag": "Roof repair: A man sits on a roof. He\n3\nsings é.\nfalls asleep.\neats.\nruns.\n",
    "winogrande": {
        "context_options": ["Ann saw Bea so Ann", "Ann saw Bea so Bea"],
        "continuation": "waved.",
        "gold": 1,
    },
    "arc_easy": {"query": "Question: How is rain?", "choices": ["dry", "wet"], "gold": 1},
    "arc_challenge": {"query": "Question: How is rain?", "choices": ["dry", "wet"], "gold": 1},
    "openbookqa": {"query": "Rain is", "choices": ["dry", "wet"], "gold": 1},
}


def picture(rng, height, width, form="JPEG"):
    """Return a random image as a file's content."""
    buffer = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(buffer, form)
    return buffer.getvalue()


def add(tar, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def write_tar(path, files):
    """Write contents, given by name, as a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            add(tar, name, content)


def images(path, folder, count, classes=CLASSES, size=32, seed=0):
    """Write a tar of ``count`` JPEGs of each class, as FOLDER/CLASS/NUMBER.jpg."""
    rng = np.random.default_rng(seed)
    places = [(number, name) for number in range(count) for name in classes]  # not the order of the names
    write_tar(path, {f"{folder}/{name}/{number:04}.jpg": picture(rng, size, size) for number, name in places})


def samples(path):
    """Write a tar of one image of each class, beside another file."""
    rng = np.random.default_rng(0)
    pictures = {name: picture(rng, 40, 32) for name in ("n2_b.JPEG", "n1_a.JPEG", "n3_c.JPEG")}
    write_tar(path, {"README.md": b"one image of each class"} | pictures)


def photographs(path):
    """Write a tar of photographs and of their labels, which count from 1."""
    rng = np.random.default_rng(1)
    files = {f"dataset/images/{number}.png": picture(rng, 32, 40, "PNG") for number in (9, 8)}
    rows = ["ImageId,URL,TrueLabel,Author", '9,https://x,3,"Zürich, Ann"', '8,https://x,1,"Zürich, Ann"', ""]
    write_tar(path, files | {"dataset/images.csv": "\n".join(rows).encode()})


def validation(path):
    """Write a tar of images of a validation set, and the list of their labels, which count from 0."""
    rng = np.random.default_rng(2)
    files = {f"ILSVRC2012_VAL_SET/data/{number}.JPEG": picture(rng, 40, 36) for number in range(3)}
    rows = "".join(f"./data/{number}.JPEG, {label}\n" for number, label in enumerate((2, 0, 1)))
    write_tar(path, files | {"ILSVRC2012_VAL_SET/dataset.txt": rows.encode()})


def write_mobilenetv2(folder, classes):
    """Write a small MobileNetV2 without norms as arrays named after ONNX nodes, its classifier in a graph of 8 bits."""
    model = mobilenetv2.folded(classes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1)
    (folder / "weights").mkdir(parents=True)
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    for number, module in enumerate(convolutions):
        for kind in ("weight", "bias"):
            np.save(folder / f"weights/conv_{2 * number}_{kind}.npy", getattr(module, kind).detach().numpy())
    linear = model.classifier[1]
    np.save(folder / "weights/gemm_104_bias.npy", linear.bias.detach().numpy())
    scale = linear.weight.detach().abs().amax(1) / 127
    codes = (linear.weight.detach() / scale[:, None]).round()
    linear.weight.data = codes * scale[:, None]
    arrays = {"weight_quantized": codes.T.numpy().astype(np.int8), "weight_scale": scale.numpy()}
    tensors = [onnx.numpy_helper.from_array(array, f"classifier.1.{name}") for name, array in arrays.items()]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph([], "classifier", [], [], tensors)),
        folder / "mobilenetv2-12-int8.onnx",
    )
    return model


def llama(seed=0, **changes):
    """Return a small model of the LLaMA architecture whose every tensor is random."""
    model = transformer.llama("causal-lm", seed=seed, **LLAMA | changes)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return model


def write_llama2c(model, path):
    """Write a model as llama2.c's export does, whose rotary pairs are neighbouring rows."""
    config, state = model.config, model.state_dict()
    size = config.hidden_size // config.num_attention_heads
    shared = config.tie_word_embeddings
    header = (config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_attention_heads)
    header += (config.num_key_value_heads, config.vocab_size if shared else -config.vocab_size)
    header += (config.max_position_embeddings,)

    def pairs(weight):
        return weight.view(-1, 2, size // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)

    def layers(name, change=lambda weight: weight):
        return [change(state[f"model.layers.{i}.{name}.weight"]) for i in range(config.num_hidden_layers)]

    tensors = [state["model.embed_tokens.weight"], *layers("input_layernorm")]
    tensors += [*layers("self_attn.q_proj", pairs), *layers("self_attn.k_proj", pairs)]
    tensors += [*layers("self_attn.v_proj"), *layers("self_attn.o_proj"), *layers("post_attention_layernorm")]
    tensors += [*layers("mlp.gate_proj"), *layers("mlp.down_proj"), *layers("mlp.up_proj"), state["model.norm.weight"]]
    tensors += [torch.zeros(2, config.max_position_embeddings, size // 2)]
    tensors += [] if shared else [state["lm_head.weight"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b"".join(tensor.numpy().astype("<f4").tobytes() for tensor in tensors)
    path.write_bytes(struct.pack("<7i", *header) + content)


def write_tokens(path, tokens=TOKENS):
    """Write a tokenizer as llama2.c's export does; later pieces have worse scores."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pieces = [piece.encode() for piece in tokens]
    scores = [0.0 if i < 259 else float(258 - i) for i in range(len(pieces))]
    rows = (struct.pack("<fi", score, len(piece)) + piece for score, piece in zip(scores, pieces, strict=True))
    path.write_bytes(struct.pack("<i", max(map(len, pieces))) + b"".join(rows))


def write_sentence_bert(folder, sentences, size=100):
    """Write a small BERT without a head, and a tokenizer that cuts and pads texts to 4 tokens."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=size, max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    tokenizer = tokenizers.train(sentences, "wordpiece", size)
    tokenizer.enable_truncation(4), tokenizer.enable_padding(length=4, pad_token="[PAD]")
    tokenizer.save(str(folder / "tokenizer.json"))


def write_gguf(model, path):
    """Write a model as llama.cpp's converter does, matrices of 4 bit; give it the weights that the file stands for."""
    import gguf

    config, kind = model.config, gguf.GGMLQuantizationType.Q4_1
    writer = gguf.GGUFWriter(path, "llama")
    facts = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
        "tokenizer_model": "gpt2",
        "token_list": BPE,
        "token_types": [3, 3, 3] + [1] * (len(BPE) - 3),
        "token_merges": MERGES,
        **{"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0},
    }
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.named_parameters():
        array = tensor.detach().numpy()
        place = names.get_name(name, try_suffixes=(".weight",))
        if array.ndim == 1:
            writer.add_tensor(place, array)
            continue
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        rows = np.arange(len(array))
        if heads:  # rotary pairs are neighbouring rows
            rows = rows.reshape(heads, 2, -1).swapaxes(1, 2).flatten()
        packed = gguf.quantize(array[rows], kind)
        writer.add_tensor(place, packed, raw_dtype=kind)
        tensor.data[torch.from_numpy(rows)] = torch.from_numpy(gguf.dequantize(packed, kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file()
    writer.close()


def write_questions(path, content):
    """Write questions in the format that the path's name says: rows as JSON lines, or a text compressed by bzip2."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".bz2":
        path.write_bytes(bz2.compress(content.encode()))
    else:
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in content))
