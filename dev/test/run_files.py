"""run_files.py: what test_run.sh feeds to train_gpt, whole files and broken ones.

    run_files.py data                shards, vocabularies, questions, a floor: data/; broken: bad/
    run_files.py models CHECKPOINT   its weights in all formats that are read: models/; broken: bad/
    run_files.py terminal COMMAND..  runs a command on a terminal of its own, prints what it writes

Everything is written below the current folder. A broken file has a row in bad/KIND.tsv: the option
that it is given to, its path, and the path that the message must name; a tab between them.
"""
import json, os, pty, random, struct, sys

EOT, T = 256, 16  # <|endoftext|> of the vocabulary without merges; tokens a sequence in the tests


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return path


class Cases:
    """The rows of a bad/KIND.tsv."""

    def __init__(self, kind):
        self.path, self.rows = "bad/%s.tsv" % kind, []

    def add(self, option, path, named=None):
        self.rows.append("%s\t%s\t%s\n" % (option, path, named or path))

    def add_what_is_no_file(self, option, folder):
        """Must be refused, and not be waited for."""
        os.makedirs(folder + "/folder.bin")
        os.mkfifo(folder + "/fifo.bin")
        os.symlink("/dev/zero", folder + "/device.bin")
        for name in ("folder", "fifo", "device"):
            self.add(option, "%s/%s.bin" % (folder, name))

    def close(self):
        write(self.path, "".join(self.rows).encode())


# --------------------------------------------------------------------------------------------------
# Shards: int32[256] = magic, version, count; then uint16

def shard(ids, magic=20240520, version=1, count=None):
    count = len(ids) if count is None else count
    header = struct.pack("<256i", magic, version, count, *[0] * 253)
    return header + struct.pack("<%dH" % len(ids), *ids)


def random_ids(rng, n, ends=0.05):
    """Words of a few letters, so that there is something to learn; <|endoftext|> now and then."""
    words = [b"the ", b"cat ", b"sat ", b"and ", b"saw ", b"a ", b"dog. "]
    ids = []
    while len(ids) < n:
        ids += [EOT] if rng.random() < ends else rng.choice(words)
    return ids[:n]


def write_shards():
    rng = random.Random(1)
    # 6 + 16 + 10 samples of 16: at 4 samples a step, 12 steps are an epoch and a half.
    for i, n in enumerate((100, 260, 170)):
        write("data/train_%06d.bin" % i, shard(random_ids(rng, n)))
    for i, n in enumerate((600, 400)):
        write("data/val_%06d.bin" % i, shard(random_ids(rng, n)))
    write("data/floor.tsv", b"token\tnats\n" + b"".join(b"%d\t1\n" % i for i in range(1000)))
    write("data/vocab.bpe", b"#version: 0.2\n")
    write("data/th.bpe", b"#version: 0.2\nt h\n")
    write("data/he.bpe", b"#version: 0.2\nh e\n")
    write("plain/train.bin", shard(random_ids(rng, 2000, ends=0)))  # no vocabulary beside it
    with open(write("long/val.bin", shard([], count=10**8)), "ab") as file:
        file.truncate(1024 + 2 * 10**8)  # zeros that take no room
    # An id behind the vocabulary, and no other sample: it is met in the first step.
    ids = random_ids(rng, T + 1)
    ids[9] = EOT + 1
    write("bad/id/train.bin", shard(ids))


def write_bad_shards():
    cases, ids = Cases("shards"), [97] * 40
    whole = shard(ids)
    files = {
        "empty": b"", "header_cut": whole[:1000], "magic": shard(ids, magic=20240801),
        "text": b"not tokens\n" * 200, "version": shard(ids, version=7), "cut": whole[:-2],
        "odd": whole + b"x", "trailing": whole + b"xx", "count_0": shard(ids, count=0),
        "count_negative": shard(ids, count=-40), "count_large": shard(ids, count=2**31 - 1),
        "no_tokens": shard([]), "one_short": shard(ids[:T])}
    for option in ("--train", "--val"):
        folder = "bad/shards" + option
        for name, data in files.items():
            cases.add(option, write("%s/%s.bin" % (folder, name), data))
        cases.add_what_is_no_file(option, folder)
        write(folder + "/mixed/0.bin", whole)
        cases.add(option, folder + "/mixed/*.bin", write(folder + "/mixed/1.bin", whole[:-2]))
    cases.close()


def write_bad_vocabularies():
    cases = Cases("vocabularies")
    files = {"empty": b"", "junk": b"\x00\x01\x02", "one_part": b"#version: 0.2\nth\n",
             "unknown": b"#version: 0.2\nthe re\n", "twice": b"#version: 0.2\nt h\nt h\n"}
    for name, data in files.items():
        cases.add("--bpe", write("bad/vocabularies/%s.bpe" % name, data))
    cases.add_what_is_no_file("--bpe", "bad/vocabularies")
    cases.close()


# --------------------------------------------------------------------------------------------------
# Questions: int32[256] = magic, version, examples, longest; an example is uint16: 65535, bytes,
# index, label, endings, then the context and each ending as a count and so many tokens

def questions(examples, magic=20240522, version=1, count=None):
    count = len(examples) if count is None else count
    longest = max([2 * len(e) for e in examples], default=0)
    header = struct.pack("<256i", magic, version, count, longest, *[0] * 252)
    return header + b"".join(struct.pack("<%dH" % len(e), *e) for e in examples)


def question(index, label, context, *endings):
    words = [index, label, len(endings)]
    for text in (context,) + endings:
        words += [len(text)] + list(text)
    return [65535, 2 * (len(words) + 2)] + words


def write_questions():
    rng = random.Random(2)
    texts = [[random_ids(rng, n) for n in (rng.randrange(3, 30), 2, 3, 5, 7)] for i in range(9)]
    for label in range(4):  # the same questions, each time with another right answer
        examples = [question(i, label, *t) for i, t in enumerate(texts)]
        write("data/label_%d.bin" % label, questions(examples))


def write_bad_questions():
    cases, good = Cases("questions"), question(0, 1, b"a", b"b", b"c", b"d", b"e")
    whole = questions([good, good])
    files = {
        "empty": b"", "header_cut": whole[:1000], "magic": questions([good], magic=20240520),
        "version": questions([good], version=2), "none": questions([]),
        "negative": questions([good], count=-1), "more": questions([good], count=2),
        "fewer": questions([good, good], count=1), "cut": whole[:-2], "odd": whole[:-1],
        "trailing": whole + b"xx", "size": questions([[65535, good[1] + 2] + good[2:]]),
        "label": questions([question(0, 4, b"a", b"b", b"c", b"d", b"e")]),
        "token": questions([question(0, 0, b"a", [EOT + 1], b"c", b"d", b"e")]),
        "no_endings": questions([question(0, 0, b"a")]),
        "empty_ending": questions([question(0, 0, b"a", b"", b"c", b"d", b"e")])}
    for name, data in files.items():
        cases.add("--eval", write("bad/questions/%s.bin" % name, data))
    cases.add_what_is_no_file("--eval", "bad/questions")
    cases.close()


def write_bad_floors():
    """A folder of validation shards for each broken floor.tsv."""
    cases = Cases("floors")
    files = {"junk": "junk\n", "no_tab": "3 1.0\n", "cut": "3\t", "large": "1000\t1\n",
             "negative": "3\t-1\n", "nan": "3\tnan\n", "minus": "-1\t1\n"}
    for name, row in files.items():
        folder = "bad/floor_" + name
        named = write(folder + "/floor.tsv", ("token\tnats\n" + row).encode())
        os.symlink("../../data/val_000000.bin", folder + "/val.bin")
        cases.add("--val", folder + "/val.bin", named)
    cases.close()


# --------------------------------------------------------------------------------------------------
# Models. A model here is a dict of name -> (shape, numbers) with the hub's names.

def read_model(folder):
    with open(folder + "/model.safetensors", "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    model = {}
    for name, t in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in t["data_offsets"])
            numbers = struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])
            model[name] = (t["shape"], numbers)
    return model


def narrow(numbers, dtype):
    """Numbers as the bytes of a type; bfloat16 is the upper half of a float."""
    if dtype == "BF16":
        return b"".join(struct.pack("<f", x)[2:] for x in numbers)
    return struct.pack("<%d%s" % (len(numbers), {"F32": "f", "F16": "e"}[dtype]), *numbers)


def widen(data, dtype):
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    kind, size = ("e", 2) if dtype == "F16" else ("f", 4)
    return struct.unpack("<%d%s" % (len(data) // size, kind), data)


def safetensors(tensors):
    """tensors: a list of [name, dtype, shape, bytes]; returns the header, a dict, and the data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    return header, b"".join(t[3] for t in tensors)


def pack_safetensors(header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def write_hub(folder, model, config, dtype="F32", prefix="transformer.", more=()):
    tensors = [[prefix + name[len("transformer."):], dtype, shape, narrow(numbers, dtype)]
               for name, (shape, numbers) in model.items()]
    write(folder + "/model.safetensors", pack_safetensors(*safetensors(tensors + list(more))))
    write(folder + "/config.json", json.dumps(config).encode())


def transposed(shape, numbers):
    rows, cols = shape
    return [numbers[r * cols + c] for c in range(cols) for r in range(rows)]


def llmc(model, config, dtype="F32"):
    """llm.c's file: int32[256], then each tensor of all layers, (out, in), wte with its padding."""
    V, C, L = config["vocab_size"], config["n_embd"], config["n_layer"]
    Vp = (V + 127) // 128 * 128
    version = 5 if dtype == "BF16" else 3
    header = [20240326, version, config["n_positions"], V, L, config["n_head"], C, Vp]
    numbers = list(model["transformer.wte.weight"][1]) + [0.0] * ((Vp - V) * C)
    numbers += model["transformer.wpe.weight"][1]
    for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                 "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                 "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"):
        for layer in range(L):
            shape, values = model["transformer.h.%d.%s" % (layer, name)]
            numbers += transposed(shape, values) if len(shape) == 2 else values
    numbers += model["transformer.ln_f.weight"][1]
    numbers += model["transformer.ln_f.bias"][1]
    return struct.pack("<256i", *header, *[0] * 248) + narrow(numbers, dtype)


def write_models(model, config):
    """The same weights in every format; a narrow type's also as wide numbers, to compare with."""
    buffers = [["h.%d.attn.%s" % (layer, name), "F32", [1, 1, T, T], bytes(4 * T * T)]
               for layer in range(2) for name in ("bias", "masked_bias")]
    write_hub("models/wide", model, config)
    write_hub("models/short", model, config, prefix="", more=buffers)
    write("models/wide.bin", llmc(model, config))
    for dtype in ("F16", "BF16"):
        rounded = {name: (shape, widen(narrow(numbers, dtype), dtype))
                   for name, (shape, numbers) in model.items()}
        write_hub("models/" + dtype, model, config, dtype)
        write_hub("models/%s_wide" % dtype, rounded, config)
    write("models/BF16.bin", llmc(model, config, "BF16"))
    # Too large to train: the squares of gradients do not fit into a float.
    large = dict(model)
    shape, numbers = model["transformer.wte.weight"]
    large["transformer.wte.weight"] = (shape, [1e30 * x for x in numbers])
    write_hub("models/large", large, config)


def write_bad_configs(model, config):
    cases = Cases("configs")
    texts = {"empty": "", "open": "{", "list": "[]", "nothing": "{}"}
    texts["cut"] = json.dumps(config)[:-30]
    changes = {
        "n_layer": (0, 1, 3, 1001, -1, 2.5), "n_head": (0, 3, 16, -2),
        "n_embd": (0, 64, 33, -32, "32"),
        "vocab_size": (0, 1, 256, 258, 70000, 2**31, 2**64 + 257), "n_positions": (0, 8, 32, 2**31)}
    for key, values in changes.items():
        for value in values:
            texts["%s_%s" % (key, value)] = json.dumps(dict(config, **{key: value}))
    for name, text in texts.items():
        folder = "bad/config_" + name
        write_hub(folder, model, config)
        write(folder + "/config.json", text.encode())
        cases.add("--model", folder)
    write_hub("bad/config_folder", model, config)
    os.remove("bad/config_folder/config.json")
    cases.add("--model", "bad/config_folder", "bad/config_folder/config.json")
    cases.close()


def write_bad_tensors(model, config):
    cases = Cases("tensors")
    wide = [[name, "F32", shape, narrow(x, "F32")] for name, (shape, x) in model.items()]

    def add(name, data):
        folder = "bad/tensors_" + name
        write_hub(folder, model, config)
        os.remove(folder + "/model.safetensors")
        cases.add("--model", folder, folder + "/model.safetensors")
        if data is not None:
            write(folder + "/model.safetensors", data)

    def edit(name, change):
        """change: takes the header, a dict, and the data; returns the data."""
        header, data = safetensors(wide)
        data = change(header, bytearray(data))
        add(name, pack_safetensors(header, bytes(data)))

    def field(tensor, key, value):
        def change(header, data):
            header["transformer." + tensor][key] = value(header["transformer." + tensor][key])
            return data
        return change

    def number(value):
        def change(header, data):
            at = header["transformer.h.1.mlp.c_fc.weight"]["data_offsets"][0] + 400
            data[at:at + 4] = struct.pack("<f", value)
            return data
        return change

    def without(name):
        def change(header, data):
            begin, end = header.pop("transformer." + name)["data_offsets"]
            assert end == len(data), "the last one, so that no hole is left"
            return data[:begin]
        return change

    whole = pack_safetensors(*safetensors(wide))
    header_size = struct.unpack("<Q", whole[:8])[0]
    add("missing", None)
    files = {
        "empty": b"", "size_cut": whole[:7], "size_only": whole[:8], "half": whole[:9000],
        "cut": whole[:-1], "trailing": whole + b"x", "text": b"version https://git-lfs\n",
        "header_cut": whole[:8 + header_size // 2]}
    for name, data in files.items():
        add(name, data)
    for size in (0, 1, header_size - 8, header_size + 8, len(whole) - 7, 2**31, 2**63, 2**64 - 1):
        add("size_%d" % size, struct.pack("<Q", size) + whole[8:])
    edit("number_nan", number(float("nan")))
    edit("number_infinite", number(float("-inf")))
    edit("without", without("ln_f.bias"))
    edit("transposed", field("h.0.mlp.c_fc.weight", "shape", lambda s: s[::-1]))
    edit("flat", field("h.0.mlp.c_fc.weight", "shape", lambda s: [s[0] * s[1]]))
    edit("product_0", field("wte.weight", "shape", lambda s: [2**32, 2**30]))
    edit("product_size", field("wte.weight", "shape", lambda s: [2**63 + s[0], s[1]]))
    edit("dimensions", field("wte.weight", "shape", lambda s: s + [1] * 40))
    edit("integers", field("wte.weight", "dtype", lambda s: "I32"))
    edit("doubles", field("ln_f.bias", "dtype", lambda s: "F64"))
    edit("halves", field("ln_f.bias", "dtype", lambda s: "F16"))
    edit("overlap", field("wpe.weight", "data_offsets", lambda o: [o[0] - 4, o[1] - 4]))
    edit("hole", field("wpe.weight", "data_offsets", lambda o: [o[0] + 4, o[1]]))
    edit("backward", field("wpe.weight", "data_offsets", lambda o: o[::-1]))
    edit("behind", field("ln_f.bias", "data_offsets", lambda o: [o[0], o[1] + 2**40]))
    cases.close()


def write_bad_llmc(model, config):
    cases, whole = Cases("llmc"), llmc(model, config)
    header = struct.unpack("<8i", whole[:32])
    files = {"empty": b"", "header_cut": whole[:1000], "header": whole[:1024], "half": whole[:9000],
             "cut_1": whole[:-1], "cut_4": whole[:-4], "trailing_1": whole + b"x",
             "trailing_64": whole + bytes(64), "narrow": llmc(model, config, "BF16")[:-2],
             "nan": whole[:5000] + struct.pack("<f", float("nan")) + whole[5004:]}
    for word, value in enumerate(header):
        grid = {0, -1, 1, -2**31, 2**31 - 1, 2**16, 2**24, value - 1, value + 1, 2 * value}
        if word == 3:  # some other vocabularies have the same padding and so the same file
            grid -= {value - 1, value + 1}
        for other in grid - {value}:
            data = bytearray(whole)
            data[4 * word:4 * word + 4] = struct.pack("<i", other)
            files["word_%d_%d" % (word, other)] = data
    for name, data in files.items():
        if name != "word_5_1":  # no size depends on the heads: one of 32 channels is a model too
            cases.add("--model", write("bad/llmc/%s.bin" % name, data))
    cases.add_what_is_no_file("--model", "bad/llmc")
    cases.close()


# --------------------------------------------------------------------------------------------------

def data():
    write_shards()
    write_bad_shards()
    write_bad_vocabularies()
    write_questions()
    write_bad_questions()
    write_bad_floors()


def models(checkpoint):
    model = read_model(checkpoint)
    with open(checkpoint + "/config.json") as file:
        config = json.load(file)
    write_models(model, config)
    write_bad_configs(model, config)
    write_bad_tensors(model, config)
    write_bad_llmc(model, config)


def terminal(*command):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    while True:
        try:
            text = os.read(terminal, 4096)
        except OSError:  # the other side is closed
            break
        if not text:
            break
        sys.stdout.buffer.write(text)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


{"data": data, "models": models, "terminal": terminal}[sys.argv[1]](*sys.argv[2:])
