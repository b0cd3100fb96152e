#!/usr/bin/env python3
"""Trains a small GPT in PyTorch and in the trainer, step by step, and compares the two.

    python3 dev/reference.py --trainer ./train_gpt --train 'D/train_*.bin' --val 'D/val_*.bin'

The training step is written here a second time, from its formulas and in float64: data order,
model, loss, clipping, schedules, Muon and AdamW; the gradients are autograd's. Nothing is imported
from the project. The two sides share file formats and the initial weights, which the trainer draws
and saves; a difference beyond the rounding of float32 is a mistake in one of them.

Needs PyTorch (Debian: python3-torch). Exit status: 0 all passed, 1 something failed, 2 usage.
"""
import argparse
import glob
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile


def die(where, what, code=2):
    print(f"error: {where}: {what}", file=sys.stderr)
    sys.exit(code)


try:
    import torch
    import torch.nn.functional as F
except ImportError:
    die("PyTorch", "not installed, needs: apt-get install python3-torch")

# --------------------------------------------------------------------------------------------------
# The run: small enough for float64, but with more than one layer, micro batch, shard and epoch
#   L layers   NH heads   C channels   B samples a step   T tokens a sample

L, NH, C, T = 2, 4, 64, 128
B, MICRO_BATCH = 8, 4   # the trainer adds up two micro batches, PyTorch takes all samples at once
SHARDS = (40, 60)       # training shards, in samples: 20 steps cross from one epoch to the next
VAL_SAMPLES = 17        # the last validation batch is not full
SEED = 2 ** 40 + 12345  # more than 32 bits
SHAPE = {"layers": L, "heads": NH, "channels": C, "seq": T, "batch": MICRO_BATCH, "seed": SEED,
         "total-batch": B * T, "val-tokens": VAL_SAMPLES * T}


def recipe(optimizer, steps):
    """What the trainer is told, by its options' names, and with it what it chooses when not told.

    Decays are large, so that few steps show them. AdamW's rate is low: where training is about to
    diverge, the rounding of float32 grows too.
    """
    told = {"optimizer": optimizer, "steps": steps, "schedule": "wsd", "final-lr": 0.1}
    chosen = {"cooldown": 0.5, "muon-lr": 0.02}
    if optimizer == "muon":
        told.update({"weight-decay": 0.5})
        chosen.update({"lr": 0.003, "adam-weight-decay": 0, "grad-clip": 0, "warmup": 0})
    else:
        told.update({"lr": 0.002, "adam-weight-decay": 0.5, "warmup": steps // 4})
        chosen.update({"grad-clip": 1})
    return told, {**chosen, **told}


# --------------------------------------------------------------------------------------------------
# Files: safetensors and token shards, both little-endian


def read_weights(checkpoint):
    """The weights by name. A file is: uint64, the size of its JSON header; the header; the data."""
    with open(f"{checkpoint}/model.safetensors", "rb") as file:
        data = file.read()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    weights = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        numbers = torch.frombuffer(bytearray(data[begin + first:begin + last]), dtype=torch.float32)
        w = numbers.reshape(entry["shape"]).double()
        # The hub's Conv1D stores (in,out), F.linear wants (out,in).
        conv1d = ".c_" in name and w.dim() == 2
        weights[name.replace("transformer.", "")] = w.T.contiguous() if conv1d else w
    return weights


def read_shard(path, most):
    """At most so many tokens. A shard is: int32[256] = 20240520, 1, count, 0 ..; uint16[count]."""
    with open(path, "rb") as file:
        magic, version, count = struct.unpack("<3i1012x", file.read(1024).ljust(1024, b"\0"))
        if (magic, version) != (20240520, 1):
            die(path, f"magic {magic}, version {version}, needs a token shard (20240520, 1)")
        n = min(count, most)
        return list(struct.unpack(f"<{n}H", file.read(2 * n)))


def write_shard(path, tokens):
    with open(path, "wb") as file:
        file.write(struct.pack(f"<3i1012x{len(tokens)}H", 20240520, 1, len(tokens), *tokens))


# --------------------------------------------------------------------------------------------------
# Data order: an epoch visits every sample of every shard once, in an order that is a function of
# the seed and of the sample's index alone

MASK64 = 2 ** 64 - 1


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK64
    return x ^ x >> 31


def permute(x, n, epoch):
    """Where position x < n of an epoch lies: four Feistel rounds permute [0, 4^h), the smallest
    such range that holds n; what falls outside [0, n) goes through them again."""
    h = 1
    while 4 ** h < n:
        h += 1
    mask = 2 ** h - 1
    while True:
        left, right = x >> h, x & mask
        for r in range(4):
            key = splitmix64(SEED ^ splitmix64(epoch * 8 + r))
            left, right = right, left ^ splitmix64(right + key & MASK64) & mask
        x = left << h | right
        if x < n:
            return x


def cut_samples(shards):
    """Sample j of a shard is its tokens jT .. jT + T: T inputs and, one place on, their targets."""
    return [shard[j * T:(j + 1) * T + 1] for shard in shards for j in range((len(shard) - 1) // T)]


def step_tokens(samples, step):
    """(B,T+1): a step takes the next B samples of the run."""
    n = len(samples)
    index = range(step * B, (step + 1) * B)
    return torch.tensor([samples[permute(i % n, n, i // n)] for i in index])


# --------------------------------------------------------------------------------------------------
# Model: GPT-2


def attention(x, w, b, w_out, b_out):
    """Causal self-attention of x (B,T,C); Q, K and V are the three thirds of w's rows (3C,C)."""
    n, t, c = x.shape
    q, k, v = (y.view(n, t, NH, c // NH).transpose(1, 2) for y in F.linear(x, w, b).split(c, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // NH)
    future = torch.ones(t, t, dtype=torch.bool).triu(1)
    out = scores.masked_fill(future, -math.inf).softmax(dim=3) @ v
    return F.linear(out.transpose(1, 2).reshape(n, t, c), w_out, b_out)


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def mean_loss(weights, tokens):
    """Mean cross-entropy, in nats, of tokens (B,T+1), each given those before it."""

    def pair(name):
        return weights[f"{name}.weight"], weights[f"{name}.bias"]

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = weights["wte.weight"][inputs] + weights["wpe.weight"][:inputs.shape[1]]
    for i in range(L):
        y = F.layer_norm(x, (C,), *pair(f"h.{i}.ln_1"), eps=1e-5)
        x = x + attention(y, *pair(f"h.{i}.attn.c_attn"), *pair(f"h.{i}.attn.c_proj"))
        y = F.layer_norm(x, (C,), *pair(f"h.{i}.ln_2"), eps=1e-5)
        x = x + F.linear(gelu(F.linear(y, *pair(f"h.{i}.mlp.c_fc"))), *pair(f"h.{i}.mlp.c_proj"))
    x = F.layer_norm(x, (C,), *pair("ln_f"), eps=1e-5)
    logits = x @ weights["wte.weight"].T  # the head is the embedding again
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# --------------------------------------------------------------------------------------------------
# Schedules: functions of step, the number of updates made before


def rate(step, o):
    """The factor on every base rate: a rise over the warm-up, a level, a fall over the cooldown."""
    fall, left = math.floor(o["cooldown"] * o["steps"] + 0.5), o["steps"] - step
    if step < o["warmup"]:
        return (step + 1) / o["warmup"]
    return 1 if left >= fall else o["final-lr"] + (1 - o["final-lr"]) * left / fall


def momentum(step, o):
    """Muon's: from 0.85 to 0.95 over a fifth of the run, 300 steps at most."""
    warmup = min(300, o["steps"] // 5)
    return 0.85 + 0.10 * min(1, step / warmup) if warmup > 0 else 0.95


# --------------------------------------------------------------------------------------------------
# Optimizers: both change w in place; state is what they remember of one tensor


def adamw(w, g, state, step, lr, decay, beta1=0.9, beta2=0.95, eps=1e-8):
    """AdamW (arXiv:1711.05101, algorithm 2): the decay does not pass through the moments."""
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    # Both means began at zero; this is what makes up for it.
    m = state["m"] / (1 - beta1 ** (step + 1))
    v = state["v"] / (1 - beta2 ** (step + 1))
    w *= 1 - lr * decay
    w -= lr * m / (v.sqrt() + eps)


def newton_schulz(x):
    """Brings the singular values of x, which are <= 1, near 1: an odd polynomial, five times, where
    x = U S V' goes to U f(S) V'. Values below 0.002 only grow, by up to a^5 = 485."""
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def muon(w, g, state, lr, decay, beta):
    """Muon (kellerjordan.github.io/posts/muon) of one matrix (out,in): momentum as a running mean,
    Nesterov's look ahead, then every direction made equally long; tall matrices move further."""
    m = state["m"] = state.get("m", 0) + (1 - beta) * (g - state.get("m", 0))
    x = g + beta * (m - g)
    norm = x.norm()  # no singular value is larger
    x = newton_schulz(x / norm) if norm > 0 else x
    rows, cols = w.shape
    w *= 1 - lr * decay
    w -= lr * max(1, rows / cols) ** 0.5 * x


# --------------------------------------------------------------------------------------------------
# The training step


def update(weights, gradients, states, step, o):
    """Clips all gradients as one vector, gives each tensor to its optimizer; returns the norm."""
    norm = math.sqrt(sum((g * g).sum().item() for g in gradients.values()))
    clip = min(1, o["grad-clip"] / norm) if o["grad-clip"] > 0 else 1
    for name, w in weights.items():
        g, is_matrix = clip * gradients[name], w.dim() == 2
        if o["optimizer"] == "muon" and is_matrix and name.startswith("h."):
            # Q, K and V are three matrices one below the other.
            blocks = 3 if "c_attn" in name else 1
            for i, (w_i, g_i) in enumerate(zip(w.chunk(blocks), g.chunk(blocks))):
                muon(w_i, g_i, states.setdefault((name, i), {}), rate(step, o) * o["muon-lr"],
                     o["weight-decay"], momentum(step, o))
        else:
            decay = o["adam-weight-decay"] if is_matrix else 0  # none of gains and biases
            adamw(w, g, states.setdefault(name, {}), step, rate(step, o) * o["lr"], decay)
    return norm


def train(weights, samples, val_tokens, o):
    """Trains the weights in place; returns the rows of the trainer's log, {(step, split): row}."""
    rows, states = {}, {}
    for step in range(o["steps"]):
        if step == 0:
            rows[step, "val"] = {"loss": mean_loss(weights, val_tokens).item()}
        # The mean over all B samples: what the trainer adds up from micro batches must equal it.
        for w in weights.values():
            w.requires_grad_(True)
        loss = mean_loss(weights, step_tokens(samples, step))
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        with torch.no_grad():
            norm = update(weights, gradients, states, step, o)
        rows[step + 1, "train"] = {"loss": loss.item(), "grad_norm": norm,
                                   "lr": rate(step, o) * o["lr"],
                                   "muon_lr": rate(step, o) * o["muon-lr"]}
    rows[o["steps"], "val"] = {"loss": mean_loss(weights, val_tokens).item()}
    return rows


# --------------------------------------------------------------------------------------------------
# The trainer's side


def make_shards(pattern, folder):
    """Cuts two short shards from the training data; returns their samples."""
    paths = sorted(glob.glob(pattern))
    if not paths:
        die(pattern, "no file, needs token shards")
    n, more = SHARDS
    tokens = read_shard(paths[0], (n + more) * T + 18)
    if len(tokens) < (n + more) * T + 18:
        die(paths[0], f"{len(tokens)} tokens, needs {(n + more) * T + 18}")
    # The first shard lacks the token behind its last input, so that sample does not count.
    shards = [tokens[:n * T], tokens[n * T:]]
    for i, shard in enumerate(shards):
        write_shard(f"{folder}/train_{i:06d}.bin", shard)
    vocabulary = os.path.join(os.path.dirname(pattern), "vocab.bpe")
    if os.path.exists(vocabulary):
        shutil.copy(vocabulary, folder)
    return cut_samples(shards)


def run_trainer(args, folder, out, options):
    """Runs the trainer on the shards in folder; returns the folder of its output."""
    command = [args.trainer, "--train", f"{folder}/train_*.bin", "--val", args.val,
               "--out", f"{folder}/{out}", *(f"--{name}={options[name]}" for name in options)]
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        die(args.trainer, f"{error.strerror}, needs the trainer's binary")
    if done.returncode != 0:
        die(" ".join(command), f"exit code {done.returncode}, {done.stderr.strip()}", code=1)
    return f"{folder}/{out}"


def read_log(path):
    """{(step, split): {column: text}}"""
    with open(path) as file:
        names, *rows = (line.rstrip("\n").split("\t") for line in file)
    rows = (dict(zip(names, row)) for row in rows)
    return {(int(row["step"]), row["split"]): row for row in rows}


# --------------------------------------------------------------------------------------------------
# Comparisons: one line each. What float32 leaves after 20 steps is about 4e-7 in a loss, 4e-6 in a
# gradient norm and 7e-6 in a tensor, the last where Newton-Schulz enlarges small singular values.


def check(results, name, error, bound):
    results.append(error <= bound)  # wrong also where the error is not a number
    print(f"{name:<40}{error:10.2e} <= {bound:.0e}  {'ok' if results[-1] else 'FAIL'}", flush=True)


def compare_logs(results, optimizer, found, wanted):
    """The worst row of each column: losses absolutely, the others relatively."""
    for split, column, bound in (("train", "loss", 1e-4), ("val", "loss", 1e-4),
                                 ("train", "grad_norm", 1e-3), ("train", "lr", 1e-5),
                                 ("train", "muon_lr", 1e-5)):
        errors = []
        for key in (key for key in wanted if key[1] == split):
            error = abs(float(found.get(key, {}).get(column, "nan")) - wanted[key][column])
            errors.append(error if column == "loss" else error / wanted[key][column])
        check(results, f"{optimizer} {split} {column}", torch.tensor(errors).max().item(), bound)


def compare_weights(results, optimizer, found, wanted):
    for name, w in wanted.items():
        used = torch.ones(len(w), dtype=torch.bool)
        if name.endswith("c_attn.bias"):
            # The same number added to a query's score for every key leaves its softmax as it is, so
            # the gradient of K's third is zero, and AdamW makes steps of rounding noise.
            used[C:2 * C] = False
        error = (found[name] - w)[used].norm() / w[used].norm()
        check(results, f"{optimizer} {name}", error.item(), 1e-3)


def main():
    parser = argparse.ArgumentParser(description="Compares the trainer with PyTorch, step by step.")
    parser.add_argument("--trainer", default="./train_gpt", help="its binary")
    parser.add_argument("--train", required=True, metavar="GLOB", help="shards, beside vocab.bpe")
    parser.add_argument("--val", required=True, metavar="GLOB")
    parser.add_argument("--optimizer", choices=["muon", "adamw", "both"], default="both")
    parser.add_argument("--steps", type=int, default=20, help="few: rounding grows with them")
    args = parser.parse_args()
    if args.steps < 1:
        die("--steps", f"found {args.steps}, needs at least 1")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        samples = make_shards(args.train, folder)
        start = run_trainer(args, folder, "start", {**SHAPE, "steps": 0})
        val_shards = [read_shard(path, VAL_SAMPLES * T + 1) for path in sorted(glob.glob(args.val))]
        val_tokens = torch.tensor(cut_samples(val_shards)[:VAL_SAMPLES])
        for optimizer in ("muon", "adamw") if args.optimizer == "both" else (args.optimizer,):
            told, values = recipe(optimizer, args.steps)
            out = run_trainer(args, folder, optimizer, {**SHAPE, **told})
            weights = read_weights(f"{start}/step_000000")
            rows = train(weights, samples, val_tokens, values)
            found = read_weights(f"{out}/step_{args.steps:06d}")
            compare_logs(results, optimizer, read_log(f"{out}/log.tsv"), rows)
            compare_weights(results, optimizer, found, weights)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
