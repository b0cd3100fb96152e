// train_gpt.c: trains a GPT from scratch, from token shards to a checkpoint that writes text.
//
//   make train                                      the main job: built-in corpus, about 5 minutes
//   ./train_gpt --train 'D/train_*.bin' --val 'D/val_*.bin' --model d6 --steps 1000 --out run
//   ./train_gpt --model run/step_001000 --prompt "Once" --generate 200
//
// The file is read from top to bottom: what is used was read before.
//   Random numbers · Options · The model's shape and its tensors · Schedule · THE SEAM ·
//   the model on the CPU: matrix product, layers, flash attention, optimizers, the model ·
//   Reading models · Checkpoints · Evaluation · Generation · Reports · main
// The part between the seam and Reading models is the model on the CPU; above and below it nothing
// knows which device a model lives on, so that another cast can include this file and replace it.
//
// Letters: B sequences a micro batch, T tokens a sequence, C channels, L layers, NH heads, HS =
// C/NH head size, V vocabulary, Vp = V padded to a multiple of 128, OC output channels of a
// product. Q K V S P O are attention's; G X A are Muon's. A gradient's name is d and the name of
// what it is of. Tensors are row-major; (B,T,C) beside a pointer is a shape; out_bt is out[b,t,:].
//
// What it refuses: a buffer that grows with T*T; allocation after the start; sums whose order
// depends on the number of threads; a non-finite number in a weight or a file; -ffast-math.

#include "data/checkpoint.h"
#include "data/options.h"
#include "data/score.h"
#include "data/tokenizer.h"
#include "data/tokens.h"
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <sys/statvfs.h>

// ------------------------------------------------------------------------------------------------
// Random numbers: Philox4x32-10, whose n-th output is a function of a key and of n alone, so that
// any weight can be drawn by itself, by any thread, on any device; cuRAND draws the same.
//   Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

void philox(uint32_t x[4], uint64_t key) {  // x: the counter, then the random bits
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
        uint64_t p = (uint64_t)x[0] * 0xD2511F53u, q = (uint64_t)x[2] * 0xCD9E8D57u;
        uint32_t x0 = (uint32_t)(q >> 32) ^ x[1] ^ key0, x2 = (uint32_t)(p >> 32) ^ x[3] ^ key1;
        x[0] = x0, x[1] = (uint32_t)q, x[2] = x2, x[3] = (uint32_t)p;
    }
}

// Four standard normal numbers, by Box and Muller from the pairs (0,1) and (2,3), sine first,
// rounded as curand_normal4 rounds: its multiply-adds are fused.
void philox_normal4(float out[4], uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    const float unit = 2.3283064e-10f, turn = 2.3283064e-10f * 6.2831855f;  // 2^-32, 2 pi 2^-32
    uint32_t x[4] = {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                     (uint32_t)(counter_high >> 32)};
    philox(x, key);
    for (int i = 0; i < 4; i += 2) {
        float radius = sqrtf(-2 * logf(fmaf((float)x[i], unit, unit / 2)));
        float angle = fmaf((float)x[i + 1], turn, turn / 2);
        out[i] = radius * sinf(angle);
        out[i + 1] = radius * cosf(angle);
    }
}

// ------------------------------------------------------------------------------------------------
// Options: one row each, names and defaults of the whole program

typedef struct {
    const char *train, *val, *out, *model, *bpe, *precision, *optimizer, *schedule, *prompt, *eval;
    long long layers, heads, channels, context, batch, seq, total_batch, steps, seed, warmup;
    long long val_every, val_tokens, sample_every, sample_tokens, save_every, keep, generate, top_k;
    long long threads;
    double minutes, lr, muon_lr, weight_decay, adam_weight_decay, grad_clip, cooldown, final_lr;
    double temperature;
    int resume, profile, help;
} Options;

#define OPTION(field, letter, kind, value, low, high, help) \
    {#field, letter, kind, offsetof(Options, field), value, low, high, help}
#define MOST_TOKENS 1e15

const Option option_rows[] = {
    OPTION(train, 'i', TEXT, "data/stories/train_*.bin", 0, 0, "training shards, a glob"),
    OPTION(val, 'j', TEXT, "data/stories/val_*.bin", 0, 0, "validation shards, a glob"),
    OPTION(out, 'o', TEXT, "out", 0, 0, "folder of the run: log.tsv, options.tsv, checkpoints"),
    OPTION(model, 'e', TEXT, "d4", 0, 0, "d4, d6, .. dN, gpt2, gpt2-medium, .. -xl, or a path"),
    OPTION(layers, 0, COUNT, "auto", 1, 1000, "layers, over the model's own"),
    OPTION(heads, 0, COUNT, "auto", 1, 1000, "attention heads"),
    OPTION(channels, 0, COUNT, "auto", 8, 100000, "channels"),
    OPTION(context, 0, COUNT, "auto", 1, 1 << 24, "positions in the model; auto: --seq"),
    OPTION(bpe, 0, TEXT, "", 0, 0, "vocabulary (vocab.bpe, or llm.c's tokenizer .bin)"),
    OPTION(batch, 'b', COUNT, "8", 1, 1 << 20, "sequences a micro batch"),
    OPTION(seq, 't', COUNT, "256", 1, 1 << 24, "tokens a sequence"),
    OPTION(total_batch, 'd', COUNT, "auto", 1, 1e9, "tokens a step; auto: batch * seq"),
    OPTION(steps, 'x', COUNT, "500", 0, 1e9, "updates to make"),
    OPTION(minutes, 0, REAL, "0", 0, 1e6, "save and stop after so long; 0: no limit"),
    OPTION(seed, 0, COUNT, "42", 0, 9e15, "seed of weights, data order and samples"),
    OPTION(precision, 0, CHOICE, "auto", 0, 0, "auto|fp32|bf16: arithmetic; on a CPU auto is fp32"),
    OPTION(optimizer, 0, CHOICE, "muon", 0, 0, "muon|adamw: for the matrices; the rest is AdamW's"),
    OPTION(lr, 'l', REAL, "auto", 0, 10, "AdamW's rate; auto: muon 0.003, adamw 0.0006*768/C"),
    OPTION(muon_lr, 0, REAL, "0.02", 0, 10, "Muon's rate"),
    OPTION(weight_decay, 'c', REAL, "0.01", 0, 10, "Muon's decay of its matrices"),
    OPTION(adam_weight_decay, 0, REAL, "0.1", 0, 10, "decay of 2-D weights under adamw"),
    OPTION(grad_clip, 0, REAL, "auto", 0, 1e6, "largest gradient norm, 0: off; auto: adamw 1"),
    OPTION(schedule, 'k', CHOICE, "wsd", 0, 0, "wsd|cosine|linear|constant: of all rates"),
    OPTION(warmup, 'u', COUNT, "auto", 0, 1e9, "steps to full rate; auto: 0, adamw 2 %, >= 20"),
    OPTION(cooldown, 0, REAL, "0.5", 0, 1, "wsd's last part, as a fraction of the steps"),
    OPTION(final_lr, 'q', REAL, "0", 0, 1, "rate at the end, as a fraction of the base"),
    OPTION(val_every, 'v', COUNT, "100", 0, 1e9, "steps between validations; 0: at the end only"),
    OPTION(val_tokens, 'm', COUNT, "32768", 1, MOST_TOKENS, "tokens of a validation"),
    OPTION(sample_every, 's', COUNT, "0", 0, 1e9, "steps between samples; 0: none"),
    OPTION(sample_tokens, 'g', COUNT, "128", 1, 1e6, "tokens of a sample"),
    OPTION(prompt, 0, TEXT, "", 0, 0, "how samples begin"),
    OPTION(save_every, 'n', COUNT, "0", 0, 1e9, "steps between checkpoints; 0: at the end only"),
    OPTION(keep, 0, COUNT, "2", 1, 1e6, "checkpoints to keep (and the last before the cooldown)"),
    OPTION(resume, 'y', FLAG, "", 0, 0, "go on from the newest checkpoint in --out, if any"),
    OPTION(generate, 0, COUNT, "0", 0, 1e9, "print so many tokens after --prompt and stop"),
    OPTION(eval, 0, TEXT, "", 0, 0, "questions .bin, answered at the end (--steps 0: at once)"),
    OPTION(temperature, 0, REAL, "1", 0, 100, "of samples; 0: always the likeliest token"),
    OPTION(top_k, 0, COUNT, "0", 0, 1e6, "sample among the k likeliest tokens; 0: all"),
    OPTION(profile, 0, FLAG, "", 0, 0, "time every op and print the table at the end"),
    OPTION(threads, 0, COUNT, "auto", 1, 4096, "CPU threads; auto: all cores"),
    OPTION(help, 'h', FLAG, "", 0, 0, "this text"),
};

int is(const char* choice, const char* word) { return strcmp(choice, word) == 0; }

// ------------------------------------------------------------------------------------------------
// The model's shape and its tensors: GPT-2's, one row a tensor. Sizes, offsets, initial values, the
// optimizer, names in files and tests all come from this table; no tensor is known by a number.

typedef struct {
    int context;  // positions the model has weights for
    int V, Vp, L, NH, C;
} GPTConfig;

enum { WTE, WPE, LN1W, LN1B, QKVW, QKVB, ATTPROJW, ATTPROJB, LN2W, LN2B, FCW, FCB, FCPROJW, FCPROJB,
       LNFW, LNFB, N_TENSORS };
typedef enum { PARAMS, GRADS, ADAM_M, ADAM_V, MUON_M, N_ARENAS } Arena;
typedef enum { ADAMW, MUON, FROZEN } Optimizer;  // FROZEN: weights alone, nothing to train with
#define NOT_THERE SIZE_MAX

typedef struct {
    const char* name;
    const char* hub_name;     // in the hub's files; %d is the layer
    int copies, rows, cols;   // L or 1 copies of a (rows, cols) matrix; a vector has one row
    int hub_transposed;       // the hub's Conv1D stores (cols, rows)
    float mean, std;          // initial values
    Optimizer optimizer;
    int blocks;               // Muon sees a copy as so many matrices, one below the other
    size_t file_rows;         // rows without the padding
    size_t offset[N_ARENAS];  // of element 0 in each arena, NOT_THERE where the tensor is not in it
} Tensor;

typedef struct {
    Tensor tensor[N_TENSORS];
    size_t size[N_ARENAS];  // floats in each arena
} Layout;

size_t copy_size(const Tensor* t) { return (size_t)t->rows * t->cols; }
size_t file_size(const Tensor* t) { return t->copies * t->file_rows * t->cols; }  // without padding
int tensor_is_vector(const Tensor* t) { return t->std == 0; }  // gains and biases are not drawn

// Projections onto the residual stream start smaller by sqrt(2L): 2L of them add up (GPT-2).
Layout layout_of(GPTConfig config, Optimizer matrices) {
    int C = config.C, L = config.L;
    float std = 0.02f, residual = 0.02f / sqrtf(2.0f * L);
    const Tensor rows[N_TENSORS] = {
        // name, hub_name, copies, rows, cols, transposed, mean, std, optimizer, blocks, file_rows
        {"wte", "wte.weight", 1, config.Vp, C, 0, 0, std, ADAMW, 1, (size_t)config.V, {0}},
        {"wpe", "wpe.weight", 1, config.context, C, 0, 0, std, ADAMW, 1, 0, {0}},
        {"ln1w", "h.%d.ln_1.weight", L, 1, C, 0, 1, 0, ADAMW, 1, 0, {0}},
        {"ln1b", "h.%d.ln_1.bias", L, 1, C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"qkvw", "h.%d.attn.c_attn.weight", L, 3 * C, C, 1, 0, std, matrices, 3, 0, {0}},
        {"qkvb", "h.%d.attn.c_attn.bias", L, 1, 3 * C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"attprojw", "h.%d.attn.c_proj.weight", L, C, C, 1, 0, residual, matrices, 1, 0, {0}},
        {"attprojb", "h.%d.attn.c_proj.bias", L, 1, C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"ln2w", "h.%d.ln_2.weight", L, 1, C, 0, 1, 0, ADAMW, 1, 0, {0}},
        {"ln2b", "h.%d.ln_2.bias", L, 1, C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"fcw", "h.%d.mlp.c_fc.weight", L, 4 * C, C, 1, 0, std, matrices, 1, 0, {0}},
        {"fcb", "h.%d.mlp.c_fc.bias", L, 1, 4 * C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"fcprojw", "h.%d.mlp.c_proj.weight", L, C, 4 * C, 1, 0, residual, matrices, 1, 0, {0}},
        {"fcprojb", "h.%d.mlp.c_proj.bias", L, 1, C, 0, 0, 0, ADAMW, 1, 0, {0}},
        {"lnfw", "ln_f.weight", 1, 1, C, 0, 1, 0, ADAMW, 1, 0, {0}},
        {"lnfb", "ln_f.bias", 1, 1, C, 0, 0, 0, ADAMW, 1, 0, {0}},
    };
    Layout layout;
    memset(&layout, 0, sizeof layout);
    for (int i = 0; i < N_TENSORS; i++) {
        Tensor* t = &layout.tensor[i];
        *t = rows[i];
        if (t->file_rows == 0) t->file_rows = (size_t)t->rows;
        for (int arena = 0; arena < N_ARENAS; arena++) {
            int state = arena == PARAMS || (arena == MUON_M) == (t->optimizer == MUON);
            int present = matrices == FROZEN ? arena == PARAMS : arena == GRADS || state;
            t->offset[arena] = present ? layout.size[arena] : NOT_THERE;
            if (present) layout.size[arena] += t->copies * copy_size(t);
        }
    }
    return layout;
}

// Parameters as people count them: without the padding.
size_t count_parameters(const Layout* layout) {
    size_t n = 0;
    for (int i = 0; i < N_TENSORS; i++) n += file_size(&layout->tensor[i]);
    return n;
}

// FLOPs of Muon's Newton-Schulz in a step: 5 rounds of X X^T, A A and A X on each matrix.
double muon_flops(const Layout* layout) {
    double flops = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &layout->tensor[i];
        if (t->optimizer != MUON) continue;
        double rows = t->rows / t->blocks, m = fmin(rows, t->cols), n = fmax(rows, t->cols);
        flops += t->copies * t->blocks * 5 * (4 * m * m * n + 2 * m * m * m);
    }
    return flops;
}

// A name is a shape: dN has N layers of N heads of 64 channels. Returns 0 when it is not a name.
int config_from_name(GPTConfig* config, const char* name) {
    const struct { const char* name; int L, NH, C; } known[] = {
        {"gpt2", 12, 12, 768}, {"gpt2-medium", 24, 16, 1024},
        {"gpt2-large", 36, 20, 1280}, {"gpt2-xl", 48, 25, 1600},
    };
    char* end = (char*)name;
    int deep = name[0] == 'd' && name[1] >= '1' && name[1] <= '9';
    long depth = deep ? strtol(name + 1, &end, 10) : 0;
    int d = depth <= 1000 && *end == 0 ? (int)depth : 0;
    GPTConfig shape = {0, 0, 0, d, d, 64 * d};
    for (int i = 0; i < 4; i++) {
        if (!is(name, known[i].name)) continue;
        shape.L = known[i].L, shape.NH = known[i].NH, shape.C = known[i].C;
    }
    *config = shape;
    return shape.L > 0;
}

// Refuses shapes that no device can run; where names the option or the file they are from.
void config_check(const GPTConfig* c, const char* where, int code) {
    if (c->L < 1 || c->L > 1000) die(code, where, "%d layers, need 1 to 1000", c->L);
    if (c->C < 16 || c->C > 100000) die(code, where, "%d channels, need 16 to 100000", c->C);
    if (c->NH < 1 || c->C % c->NH) die(code, where, "%d heads, need to divide %d", c->NH, c->C);
    int HS = c->C / c->NH;
    if (HS % 8 || HS < 16 || HS > 128) {
        die(code, where, "%d channels a head, need a multiple of 8 from 16 to 128", HS);
    }
    if (c->V < 2 || c->V > 65536) die(code, where, "vocabulary of %d, need 2 to 65536", c->V);
    if (c->context < 1 || c->context > 1 << 24) {
        die(code, where, "%d positions, need 1 to %d", c->context, 1 << 24);
    }
}

// ------------------------------------------------------------------------------------------------
// Schedule: one multiplier for the base rate of every group, a function of the step alone

typedef struct {
    const char* shape;   // wsd, cosine, linear, constant
    long long steps, warmup;
    long long cooldown;    // steps of wsd's fall, at the end
    double final_lr;     // fraction left at the end
    long long momentum_warmup;
} Schedule;

// The multiplier for update number step (from 0): 1. rise, 2. hold, 3. fall.
double schedule_rate(const Schedule* s, long long step) {
    if (step < s->warmup) return (double)(step + 1) / (double)s->warmup;
    long long fall = is(s->shape, "wsd") ? s->cooldown : s->steps - s->warmup;
    long long left = s->steps - step;
    if (left >= fall || fall <= 0 || is(s->shape, "constant")) return 1;
    double height = (double)left / (double)fall;
    if (is(s->shape, "cosine")) height = 0.5 - 0.5 * cos(M_PI * height);
    return s->final_lr + (1 - s->final_lr) * height;
}

// Muon's momentum rises from 0.85 to 0.95 over the first steps.
double schedule_momentum(const Schedule* s, long long step) {
    double part = s->momentum_warmup > 0 ? (double)step / (double)s->momentum_warmup : 1;
    return 0.85 + 0.10 * (part < 1 ? part : 1);
}

// ------------------------------------------------------------------------------------------------
// THE SEAM: all that the rest of the program knows of a model, whichever device it lives on

struct GPT;
typedef struct GPT GPT;

typedef struct {
    long long step;  // updates made before this one
    float lr, muon_lr, muon_momentum;
    float weight_decay;       // of Muon's matrices
    float adam_weight_decay;  // of AdamW's 2-D tensors
    float grad_clip;          // 0: off
} Update;

typedef struct {
    float loss;       // mean over the step's micro batches
    double grad_norm;  // before clipping
    int finite;       // 0: something was not, and nothing was updated
    int bad_tensor;   // then the first tensor whose gradient is not finite, or -1: the loss
} StepStats;

// All memory, once: B sequences of T <= context tokens; prints the plan and checks it against what
// is free first (code 4). Weights are zero until they are set. precision: auto, fp32 or bf16.
GPT* gpt_create(GPTConfig config, Optimizer matrices, const char* precision, int B, int T);
void gpt_free(GPT* model);
const Layout* gpt_layout(const GPT* model);
// Draws initial weights, the same on every device to 1e-6.
void gpt_init_weights(GPT* model, uint64_t seed);
// inputs, targets (B,T).
void gpt_forward(GPT* model, const int* inputs, const int* targets);
// Of the last forward: the mean loss, and each token's loss (B,T), in nats.
float gpt_loss(GPT* model);
void gpt_losses(GPT* model, float* losses);
void gpt_zero_grad(GPT* model);
// gradients += scale * d mean loss, and the step's loss += scale * mean loss; once a forward.
void gpt_backward(GPT* model, float scale);
// Norm, clipping, finite check, optimizers. Nothing changes when a number is not finite.
StepStats gpt_update(GPT* model, const Update* update);
// One token at a position, given that all before it went the same way; logits (V).
void gpt_decode(GPT* model, int token, int position, float* logits);
// Elements of a tensor in file order, all copies, without padding.
void gpt_get(GPT* model, Arena arena, int tensor, size_t first, size_t count, float* host);
void gpt_set(GPT* model, Arena arena, int tensor, size_t first, size_t count, const float* host);
// Times every op from now on, if on; prints what each took of so many seconds.
void gpt_profile(int on);
void gpt_print_profile(double seconds);

#ifndef GPT_CUDA
// ------------------------------------------------------------------------------------------------
// Profile: what each op took, counted only when asked for

typedef struct {
    const char* name;
    int64_t calls;
    double seconds, flops, bytes;  // sums over the calls
} OpProfile;

OpProfile op_profiles[32];
int profiling;

void gpt_profile(int on) { profiling = on; }

double op_begin(void) { return profiling ? now_seconds() : 0; }

void op_end(const char* name, double begin, double flops, double bytes) {
    if (!profiling) return;
    OpProfile* op = op_profiles;
    while (op->name && op->name != name) op++;
    op->name = name;
    op->calls++;
    op->seconds += now_seconds() - begin;
    op->flops += flops;
    op->bytes += bytes;
}

void gpt_print_profile(double seconds) {
    printf("\n%-22s %8s %10s %7s %9s %8s\n", "op", "calls", "ms", "share", "GFLOP/s", "GB/s");
    for (const OpProfile* op = op_profiles; op->name; op++) {
        printf("%-22s %8lld %10.1f %6.1f%% %9.1f %8.1f\n", op->name, (long long)op->calls,
               1e3 * op->seconds, 100 * op->seconds / seconds, 1e-9 * op->flops / op->seconds,
               1e-9 * op->bytes / op->seconds);
    }
}

// ------------------------------------------------------------------------------------------------
// Vectors: the widest registers of the machine, through the compiler's vector extensions, so that
// one source serves AVX-512, AVX2, SSE and NEON. A comparison yields all-ones or all-zero lanes,
// and lanes are chosen with & and |, which C and C++ compilers both take.

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))
typedef float Vec __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t VecInt __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef float Vec4 __attribute__((vector_size(16), aligned(4), may_alias));
enum { LANES = VECTOR_BYTES / 4 };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__CUDACC__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline Vec vec_load(const float* x) { return *(const Vec*)x; }
static inline void vec_store(float* out, Vec x) { *(Vec*)out = x; }

static inline Vec vec_set(float x) {
    Vec zero = {0};
    return x - zero;  // with x + zero compilers must keep the addition, for -0
}

static inline Vec vec_choose(VecInt first, Vec a, Vec b) {
    return (Vec)((first & (VecInt)a) | (~first & (VecInt)b));
}

static inline Vec vec_max(Vec a, Vec b) { return vec_choose(a > b, a, b); }

static inline float vec_sum(Vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

static inline float vec_max_lane(Vec x) {
    float most = x[0];
    for (int i = 1; i < LANES; i++) most = x[i] > most ? x[i] : most;
    return most;
}

// 2^x to 2e-7 relative; exactly 0 for x < -126, 2^127 for x > 127, NaN for NaN. x = n + f with n
// whole (adding 1.5 * 2^23 rounds to whole numbers and leaves n in the low bits) and |f| <= 1/2,
// 2^f by its Taylor series in f ln 2 to the sixth power.
static inline Vec vec_exp2(Vec x) {
    const float rounder = 12582912.0f;
    VecInt tiny = x < -126.0f, huge = x > 127.0f;
    x = vec_choose(tiny, vec_set(-126.0f), vec_choose(huge, vec_set(127.0f), x));
    Vec shifted = x + rounder;
    Vec f = x - (shifted - rounder);
    VecInt n = ((VecInt)shifted << 23) + (127 << 23);
    Vec p = 1.5403530e-4f * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    return (Vec)((VecInt)(p * (Vec)n) & ~tiny);
}

// ------------------------------------------------------------------------------------------------
// Matrix product: c = add + bias + a b
//   c (M,N) row-major; a (M,K), b (K,N) by strides, so that a transposed matrix is only a view;
//   add (M,N) or NULL, may be c itself; bias (N) or NULL.
//   Bound by compute: 2 M N K FLOPs. Nearly all the time of a training step is spent here.
//
// Three levels, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
// (ACM TOMS 2008): a thread takes a tile of c; for a slice of K it copies its parts of a and b into
// panels (all that the inner loop reads is then one sequential stream, transposed or not); the
// micro kernel keeps MR x NR sums in registers and needs MR + 2 loads for 2 MR multiply-adds of
// vectors. Tile sizes follow from the shape alone, so the bits of c do not depend on threads.

enum {
    MR = VECTOR_BYTES == 64 ? 12 : 6,  // registers: 24 of 32 sums with AVX-512, 12 of 16 with AVX
    NR = 2 * LANES,
    MOST_M = 192, MOST_N = 256, MOST_K = 192  // panels of a and b: 144 and 192 KiB, in the L2 cache
};

typedef struct {
    const float* data;
    size_t row, col;  // element (i,j) is data[i * row + j * col]
} View;

static inline View make_view(const float* data, size_t row, size_t col) {
    View v = {data, row, col};
    return v;
}

static inline View view(const float* x, size_t cols) { return make_view(x, cols, 1); }
static inline View view_transposed(const float* x, size_t cols) { return make_view(x, 1, cols); }
static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

// sum (MR, NR) += a b over K, a's element (i,k) at a[i * a_row + k * a_col], b's rows b_row apart.
ALWAYS_INLINE void micro_kernel(Vec sum[MR][2], const float* a, size_t a_row, size_t a_col,
                                const float* b, size_t b_row, int K) {
    for (int k = 0; k < K; k++, a += a_col, b += b_row) {
        Vec b0 = vec_load(b), b1 = vec_load(b + LANES);
        UNROLL for (int i = 0; i < MR; i++) {
            Vec x = vec_set(a[i * a_row]);
            sum[i][0] += x * b0;
            sum[i][1] += x * b1;
        }
    }
}

// A block of 4 x 4 turned over: out[k * width + i] = in[i * lane + k].
static inline void transpose4(float* out, size_t width, const float* in, size_t lane) {
    Vec4 a = *(const Vec4*)in, b = *(const Vec4*)(in + lane);
    Vec4 c = *(const Vec4*)(in + 2 * lane), d = *(const Vec4*)(in + 3 * lane);
    Vec4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    Vec4 cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    Vec4 ef = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    Vec4 gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(Vec4*)out = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(Vec4*)(out + width) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(Vec4*)(out + 2 * width) = __builtin_shufflevector(ef, gh, 0, 1, 4, 5);
    *(Vec4*)(out + 3 * width) = __builtin_shufflevector(ef, gh, 2, 3, 6, 7);
}

// out: ceil(n / width) panels (K, width), lane i of panel p is in[(p * width + i) * lane + k *
// step]; lanes beyond n are 0. One of lane and step is 1.
ALWAYS_INLINE void pack(float* out, const float* in, size_t lane, size_t step, int n, int K,
                        const int width) {
    for (int first = 0; first < n; first += width, in += width * lane, out += (size_t)width * K) {
        int lanes = n - first < width ? n - first : width, i = 0;
        if (lanes < width) memset(out, 0, sizeof(float) * width * K);
        if (lane == 1 && lanes == width) {  // a copy of known size is a few instructions
            for (int k = 0; k < K; k++) memcpy(out + k * width, in + k * step, 4 * width);
            continue;
        }
        for (; step == 1 && i + 4 <= lanes; i += 4) {
            int k = 0;
            for (; k + 4 <= K; k += 4) {
                transpose4(out + k * width + i, width, in + i * lane + k, lane);
            }
            for (; k < K; k++) {
                for (int j = i; j < i + 4; j++) out[k * width + j] = in[j * lane + k];
            }
        }
        for (; i < lanes; i++) {
            for (int k = 0; k < K; k++) out[k * width + i] = in[i * lane + k * step];
        }
    }
}

// c (rows <= MR, cols <= NR; stride N) = sum + add + bias.
static inline void store_tile(
    float* c, size_t N, Vec sum[MR][2], const float* add, const float* bias, int rows, int cols) {
    for (int i = 0; i < rows; i++, c += N, add = add ? add + N : NULL) {
        if (cols == NR) {
            for (int half = 0; half < 2; half++) {
                Vec x = sum[i][half];
                if (add) x += vec_load(add + half * LANES);
                if (bias) x += vec_load(bias + half * LANES);
                vec_store(c + half * LANES, x);
            }
        } else {
            float row[NR];
            memcpy(row, sum[i], sizeof row);
            for (int j = 0; j < cols; j++) {
                c[j] = row[j] + (add ? add[j] : 0) + (bias ? bias[j] : 0);
            }
        }
    }
}

// One tile of c: rows from i0, cols from j0.
static void matmul_tile(float* c, View a, View b, const float* add, const float* bias, size_t N,
                        int K, size_t i0, size_t j0, int rows, int cols) {
    float a_panels[(MOST_M + MR) * MOST_K] __attribute__((aligned(64)));
    float b_panels[(MOST_N + NR) * MOST_K] __attribute__((aligned(64)));
    int slices = (K + MOST_K - 1) / MOST_K;
    for (int slice = 0; slice < slices; slice++) {
        int k0 = (int)((int64_t)K * slice / slices);
        int n_k = (int)((int64_t)K * (slice + 1) / slices) - k0;
        pack(a_panels, a.data + i0 * a.row + k0 * a.col, a.row, a.col, rows, n_k, MR);
        pack(b_panels, b.data + k0 * b.row + j0 * b.col, b.col, b.row, cols, n_k, NR);
        for (int j = 0; j < cols; j += NR) {
            for (int i = 0; i < rows; i += MR) {
                Vec sum[MR][2] = {{{0}}};
                micro_kernel(sum, a_panels + i * n_k, 1, MR, b_panels + j * n_k, NR, n_k);
                size_t at = (i0 + i) * N + j0 + j;
                const float* before = slice > 0 ? c + at : add ? add + at : NULL;
                store_tile(c + at, N, sum, before, slice == 0 && bias ? bias + j0 + j : NULL,
                           rows - i < MR ? rows - i : MR, cols - j < NR ? cols - j : NR);
            }
        }
    }
}

// The size of each of the fewest equal tiles that are at most `most` long, a multiple of unit.
static size_t tile_size(size_t n, size_t most, size_t unit) {
    size_t tiles = (n + most - 1) / most;
    return ((n + tiles - 1) / tiles + unit - 1) / unit * unit;
}

void matmul(float* c, View a, View b, const float* add, const float* bias, size_t M, size_t N,
            int K) {
    size_t tile_m = tile_size(M, MOST_M, MR), tile_n = tile_size(N, MOST_N, NR);
    size_t across = (N + tile_n - 1) / tile_n, tiles = across * ((M + tile_m - 1) / tile_m);
    #pragma omp parallel for schedule(dynamic)
    for (size_t tile = 0; tile < tiles; tile++) {
        size_t i0 = tile / across * tile_m, j0 = tile % across * tile_n;
        matmul_tile(c, a, b, add, bias, N, K, i0, j0, (int)min_size(tile_m, M - i0),
                    (int)min_size(tile_n, N - j0));
    }
}

// ------------------------------------------------------------------------------------------------
// Linear layer: out = residual + bias + inp weight^T
//   out (N,OC)   inp (N,C)   weight (OC,C)   bias (OC)   residual (N,OC) or NULL    N = B*T
//   Backward: dinp = dout weight; dweight += dout^T inp; dbias += column sums of dout.
//   Bound by compute: 2 N C OC FLOPs forward, twice that backward.

void matmul_forward(float* out, const float* inp, const float* weight, const float* bias,
                    const float* residual, size_t N, int C, int OC) {
    double begin = op_begin();
    matmul(out, view(inp, C), view_transposed(weight, C), residual, bias, N, OC, C);
    op_end("matmul_forward", begin, 2.0 * N * C * OC, 4.0 * (N * C + (double)C * OC + N * OC));
}

// Column sums of dout (N,OC), in the order of the rows; a thread owns a strip of columns.
static void bias_backward(float* dbias, const float* dout, size_t N, int OC) {
    enum { STRIP = 64 };
    #pragma omp parallel for
    for (int first = 0; first < OC; first += STRIP) {
        int n = OC - first < STRIP ? OC - first : STRIP;
        float sum[STRIP] = {0};
        for (size_t i = 0; i < N; i++) {
            for (int j = 0; j < n; j++) sum[j] += dout[i * OC + first + j];
        }
        for (int j = 0; j < n; j++) dbias[first + j] += sum[j];
    }
}

void matmul_backward(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                     const float* weight, size_t N, int C, int OC) {
    double begin = op_begin();
    matmul(dinp, view(dout, OC), view(weight, C), NULL, NULL, N, C, OC);
    matmul(dweight, view_transposed(dout, OC), view(inp, C), dweight, NULL, OC, C, (int)N);
    bias_backward(dbias, dout, N, OC);
    op_end("matmul_backward", begin, 4.0 * N * C * OC, 8.0 * (N * C + (double)C * OC + N * OC));
}

// ------------------------------------------------------------------------------------------------
// Embedding: out[b,t,:] = wte[inp[b,t],:] + wpe[t,:]
//   out (B,T,C)   inp (B,T)   wte (V,C)   wpe (context,C)
//   Backward: dwte[inp[b,t],:] += dout[b,t,:]; dwpe[t,:] += dout[b,t,:]. Bound by memory.
//   Two tokens may add to the same row, so a thread owns a strip of channels and takes all tokens
//   in order: no locks, and the same sums for any number of threads.

void embedding_forward(float* out, const int* inp, const float* wte, const float* wpe, int B, int T,
                       int C) {
    double begin = op_begin();
    #pragma omp parallel for
    for (int row = 0; row < B * T; row++) {
        float* out_bt = out + (size_t)row * C;
        const float *token = wte + (size_t)inp[row] * C, *position = wpe + (size_t)(row % T) * C;
        for (int c = 0; c < C; c++) out_bt[c] = token[c] + position[c];
    }
    op_end("embedding_forward", begin, 0, 12.0 * B * T * C);
}

void embedding_backward(float* dwte, float* dwpe, const float* dout, const int* inp, int B, int T,
                        int C) {
    enum { STRIP = 64 };
    double begin = op_begin();
    #pragma omp parallel for
    for (int first = 0; first < C; first += STRIP) {
        int last = C - first < STRIP ? C : first + STRIP;
        for (int row = 0; row < B * T; row++) {
            const float* dout_bt = dout + (size_t)row * C;
            float *token = dwte + (size_t)inp[row] * C, *position = dwpe + (size_t)(row % T) * C;
            for (int c = first; c < last; c++) token[c] += dout_bt[c];
            for (int c = first; c < last; c++) position[c] += dout_bt[c];
        }
    }
    op_end("embedding_backward", begin, 0, 20.0 * B * T * C);
}

// ------------------------------------------------------------------------------------------------
// LayerNorm: out = (inp - mean) * rstd * weight + bias over the C channels of each row
//   out, inp (N,C)   mean, rstd (N)   weight, bias (C)        source: arXiv:1607.06450
//   Backward adds to dinp (it is the residual stream) and to dweight, dbias. Bound by memory.

void layernorm_forward(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                       const float* bias, size_t N, int C) {
    double begin = op_begin();
    #pragma omp parallel for
    for (size_t row = 0; row < N; row++) {
        const float* x = inp + row * C;
        float sum = 0, squares = 0;
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) sum += x[c];
        float m = sum / C;
        #pragma omp simd reduction(+ : squares)
        for (int c = 0; c < C; c++) squares += (x[c] - m) * (x[c] - m);
        float s = 1 / sqrtf(squares / C + 1e-5f);
        for (int c = 0; c < C; c++) out[row * C + c] = (x[c] - m) * s * weight[c] + bias[c];
        mean[row] = m;
        rstd[row] = s;
    }
    op_end("layernorm_forward", begin, 0, 8.0 * N * C);
}

// With xhat = (inp - mean) * rstd and g = dout * weight:
//   dinp += rstd * (g - mean(g) - xhat * mean(g * xhat)), the means over the channels of the row.
static void layernorm_backward_inp(float* dinp, const float* dout, const float* inp,
                                   const float* weight, float mean, float rstd, int C) {
    float sum = 0, dot = 0;
    #pragma omp simd reduction(+ : sum, dot)
    for (int c = 0; c < C; c++) {
        float g = dout[c] * weight[c];
        sum += g;
        dot += g * (inp[c] - mean) * rstd;
    }
    sum /= C;
    dot /= C;
    for (int c = 0; c < C; c++) {
        float xhat = (inp[c] - mean) * rstd;
        dinp[c] += rstd * (dout[c] * weight[c] - sum - xhat * dot);
    }
}

void layernorm_backward(float* dinp, float* dweight, float* dbias, const float* dout,
                        const float* inp, const float* weight, const float* mean, const float* rstd,
                        size_t N, int C) {
    enum { STRIP = 64 };
    double begin = op_begin();
    #pragma omp parallel for
    for (size_t row = 0; row < N; row++) {
        layernorm_backward_inp(dinp + row * C, dout + row * C, inp + row * C, weight, mean[row],
                               rstd[row], C);
    }
    // dweight += sum over rows of dout * xhat, dbias += sum of dout: a strip of channels a thread.
    #pragma omp parallel for
    for (int first = 0; first < C; first += STRIP) {
        int n = C - first < STRIP ? C - first : STRIP;
        float dw[STRIP] = {0}, db[STRIP] = {0};
        for (size_t row = 0; row < N; row++) {
            const float *d = dout + row * C + first, *x = inp + row * C + first;
            for (int c = 0; c < n; c++) dw[c] += d[c] * ((x[c] - mean[row]) * rstd[row]);
            for (int c = 0; c < n; c++) db[c] += d[c];
        }
        for (int c = 0; c < n; c++) dweight[first + c] += dw[c];
        for (int c = 0; c < n; c++) dbias[first + c] += db[c];
    }
    op_end("layernorm_backward", begin, 0, 24.0 * N * C);
}

// ------------------------------------------------------------------------------------------------
// GELU, tanh form: out = x/2 (1 + tanh u) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
//   out, inp (n), n a multiple of 32         source: arXiv:1606.08415; bound by memory
//   Backward, in place: dinp = dout * (s + 2 x s (1 - s) u'), s = sigmoid(2u).

#define GELU_SCALE 0.7978845608f  // sqrt(2/pi)
#define GELU_CUBIC 0.044715f
#define LOG2E 1.4426950409f
#define LN2 0.6931471806f

static inline Vec gelu_sigmoid(Vec x) {
    Vec u = GELU_SCALE * (x + GELU_CUBIC * x * x * x);
    return 1.0f / (1.0f + vec_exp2(-2 * LOG2E * u));
}

void gelu_forward(float* out, const float* inp, size_t n) {
    double begin = op_begin();
    #pragma omp parallel for
    for (size_t i = 0; i < n; i += LANES) {
        Vec x = vec_load(inp + i);
        vec_store(out + i, x * gelu_sigmoid(x));
    }
    op_end("gelu_forward", begin, 0, 8.0 * n);
}

void gelu_backward(float* dinp, const float* inp, size_t n) {
    double begin = op_begin();
    #pragma omp parallel for
    for (size_t i = 0; i < n; i += LANES) {
        Vec x = vec_load(inp + i), s = gelu_sigmoid(x);
        Vec du = GELU_SCALE * (1.0f + 3 * GELU_CUBIC * x * x);
        vec_store(dinp + i, vec_load(dinp + i) * (s + 2.0f * x * s * (1.0f - s) * du));
    }
    op_end("gelu_backward", begin, 0, 12.0 * n);
}

// ------------------------------------------------------------------------------------------------
// Flash attention, causal: S = Q K^T / sqrt(HS) for keys up to the query, P = softmax(S), O = P V
//   qkv (B,T,3C): Q, K, V side by side, head h in channels h*HS ..   out (B,T,C)   lse (B,NH,T)
//   Bound by compute: 2 B NH T^2 HS FLOPs forward (the half below the diagonal), 2.5 times that
//   backward. Memory: the (T,T) scores exist only as tiles of Q_TILE x K_TILE on a thread's stack;
//   kept for backward is a number a row, lse = log sum_j exp(S_ij), and P = exp(S - lse) again.
//   Source: Dao, "FlashAttention-2", arXiv:2307.08691, algorithms 1 and 2.
//
// Key tiles ascend, so a longer T only adds tiles: the outputs of a prefix do not depend on T. The
// exponentials are powers of two, so log2(e) goes into Q's scale. Tiles end in zeros.

enum { Q_TILE = 96, K_TILE = 96, MOST_HS = 128 };  // multiples of MR and NR on every machine

// tile (tile_rows, W) = scale * in, of which `rows` rows of HS are there, in_row apart.
static void load_tile(float* tile, int tile_rows, int W, const float* in, size_t in_row, int rows,
                      int HS, float scale) {
    memset(tile, 0, sizeof(float) * tile_rows * W);
    for (int i = 0; i < rows; i++) {
        for (int d = 0; d < HS; d++) tile[i * W + d] = scale * in[i * in_row + d];
    }
}

// c (M,N) = a b, or += a b, with b (K,N); MR divides M, NR divides N. Row i of a begins at a + i *
// next; its rows and columns are a_row and a_col apart, constants for the inner loop's sake.
ALWAYS_INLINE void tile_product(float* c, const float* a, size_t next, const size_t a_row,
                                const size_t a_col, const float* b, int M, int N, int K,
                                int accumulate) {
    for (int j = 0; j < N; j += NR) {
        for (int i = 0; i < M; i += MR) {
            Vec sum[MR][2] = {{{0}}};
            micro_kernel(sum, a + i * next, a_row, a_col, b + j, N, K);
            float* out = c + i * N + j;
            store_tile(out, N, sum, accumulate ? out : NULL, NULL, MR, NR);
        }
    }
}

// One online softmax step of a row of scores s (K_TILE), of which the first n count: s becomes
// 2^(s - m) with m the maximum so far and l the sum so far; returns the factor for all sums before.
static float softmax_step(float* s, int n, float* m, float* l) {
    for (int j = n; j < K_TILE; j++) s[j] = -INFINITY;
    Vec most = vec_set(*m), sum = {0};
    for (int j = 0; j < K_TILE; j += LANES) most = vec_max(most, vec_load(s + j));
    float m_new = vec_max_lane(most), factor = exp2f(*m - m_new);
    for (int j = 0; j < K_TILE; j += LANES) {
        Vec p = vec_exp2(vec_load(s + j) - m_new);
        vec_store(s + j, p);
        sum += p;
    }
    *m = m_new;
    *l = *l * factor + vec_sum(sum);
    return factor;
}

// o (Q_TILE,W) += p v where query i sees keys 0 .. i + behind of the tile. Up to the first query of
// each group of MR rows this is a product; the triangle behind it goes row by row, since a hidden
// key must not reach a row even as 0 * NaN.
static void causal_product(float* o, const float* p, const float* v, int W, int behind) {
    for (int i0 = 0; i0 < Q_TILE; i0 += MR) {
        int full = i0 + behind + 1 < K_TILE ? i0 + behind + 1 : K_TILE;
        if (full < 0) full = 0;
        tile_product(o + i0 * W, p + i0 * K_TILE, 0, K_TILE, 1, v, MR, W, full, 1);
        for (int i = i0; i < i0 + MR; i++) {
            for (int j = full; j <= i + behind && j < K_TILE; j++) {
                for (int d = 0; d < W; d++) o[i * W + d] += p[i * K_TILE + j] * v[j * W + d];
            }
        }
    }
}

// The queries from q0 of one head of one sequence: qkv, out and lse point at its first token.
static void attention_forward_tile(float* out, float* lse, const float* qkv, int q0, int T, int C,
                                   int HS) {
    float q[Q_TILE * MOST_HS], k[MOST_HS * K_TILE], v[K_TILE * MOST_HS], o[Q_TILE * MOST_HS];
    float s[Q_TILE * K_TILE], m[Q_TILE], l[Q_TILE];
    int W = (HS + NR - 1) / NR * NR, n_q = T - q0 < Q_TILE ? T - q0 : Q_TILE;
    size_t row = 3 * (size_t)C;
    pack(q, qkv + q0 * row, row, 1, n_q, HS, MR);
    for (int i = 0; i < Q_TILE * HS; i++) q[i] *= LOG2E / sqrtf((float)HS);
    memset(o, 0, sizeof(float) * Q_TILE * W);
    for (int i = 0; i < Q_TILE; i++) m[i] = -INFINITY, l[i] = 0;

    for (int k0 = 0; k0 < q0 + n_q; k0 += K_TILE) {
        int n_k = q0 + n_q - k0 < K_TILE ? q0 + n_q - k0 : K_TILE;
        pack(k, qkv + C + k0 * row, row, 1, n_k, HS, K_TILE);  // K^T
        load_tile(v, K_TILE, W, qkv + 2 * C + k0 * row, row, n_k, HS, 1);
        tile_product(s, q, HS, 1, MR, k, Q_TILE, K_TILE, HS, 0);
        for (int i = 0; i < n_q; i++) {
            int visible = q0 + i - k0 + 1 < n_k ? q0 + i - k0 + 1 : n_k;
            float factor = softmax_step(s + i * K_TILE, visible, &m[i], &l[i]);
            for (int d = 0; d < W; d++) o[i * W + d] *= factor;
        }
        causal_product(o, s, v, W, q0 - k0);
    }
    for (int i = 0; i < n_q; i++) {
        for (int d = 0; d < HS; d++) out[(q0 + i) * (size_t)C + d] = o[i * W + d] / l[i];
        lse[q0 + i] = (m[i] + log2f(l[i])) * LN2;
    }
}

void attention_forward(float* out, float* lse, const float* qkv, int B, int T, int C, int NH) {
    double begin = op_begin();
    int HS = C / NH, q_tiles = (T + Q_TILE - 1) / Q_TILE;
    // A unit of work is a tile of queries; the last tiles see the most keys, so they come first.
    #pragma omp parallel for schedule(dynamic)
    for (int unit = 0; unit < B * NH * q_tiles; unit++) {
        size_t bh = (size_t)unit % (B * NH), b = bh / NH, h = bh % NH;
        int q0 = (q_tiles - 1 - unit / (B * NH)) * Q_TILE;
        size_t at = b * T * C + h * HS, at3 = b * T * 3 * C + h * HS;
        attention_forward_tile(out + at, lse + bh * T, qkv + at3, q0, T, C, HS);
    }
    op_end("attention_forward", begin, 2.0 * B * NH * T * (double)T * HS, 16.0 * B * T * C);
}

// Row i of a tile, in place: p = S becomes P = 2^(S - lse), ds = dP becomes dS = P * (dP - D) with
// D = sum_d O_d dO_d; both are 0 where the key is hidden.
static void score_row_backward(float* p, float* ds, const float* o, const float* d_o, float lse,
                               int visible, int HS) {
    float D = 0;
    for (int d = 0; d < HS; d++) D += o[d] * d_o[d];
    for (int j = 0; j < K_TILE; j += LANES) {
        Vec x = vec_exp2(vec_load(p + j) - lse * LOG2E);
        vec_store(p + j, x);
        vec_store(ds + j, x * (vec_load(ds + j) - D));
    }
    for (int j = visible; j < K_TILE; j++) p[j] = ds[j] = 0;
}

// One head of one sequence:
//   dV = P^T dO   dP = dO V^T   dS = P * (dP - D)   dQ = dS K / sqrt(HS)   dK = dS^T Q / sqrt(HS)
// Key tiles outside, with their dK and dV summed up beside them; query tiles inside, from the
// diagonal on. dqkv is assigned.
static void attention_backward_head(float* dqkv, const float* dout, const float* out,
                                    const float* lse, const float* qkv, int T, int C, int HS) {
    float k[K_TILE * MOST_HS], k_t[MOST_HS * K_TILE], v_t[MOST_HS * K_TILE], dk[K_TILE * MOST_HS];
    float dv[K_TILE * MOST_HS], q[Q_TILE * MOST_HS], d_o[Q_TILE * MOST_HS], dq[Q_TILE * MOST_HS];
    float p[Q_TILE * K_TILE], ds[Q_TILE * K_TILE], panels[Q_TILE * MOST_HS];
    float scale = 1 / sqrtf((float)HS);
    int W = (HS + NR - 1) / NR * NR;
    size_t row = 3 * (size_t)C;
    for (int k0 = 0; k0 < T; k0 += K_TILE) {
        int n_k = T - k0 < K_TILE ? T - k0 : K_TILE;
        load_tile(k, K_TILE, W, qkv + C + k0 * row, row, n_k, HS, 1);
        pack(k_t, qkv + C + k0 * row, row, 1, n_k, HS, K_TILE);
        pack(v_t, qkv + 2 * C + k0 * row, row, 1, n_k, HS, K_TILE);
        memset(dk, 0, sizeof(float) * K_TILE * W);
        memset(dv, 0, sizeof(float) * K_TILE * W);
        for (int q0 = k0; q0 < T; q0 += Q_TILE) {
            int n_q = T - q0 < Q_TILE ? T - q0 : Q_TILE;
            load_tile(q, Q_TILE, W, qkv + q0 * row, row, n_q, HS, LOG2E * scale);
            load_tile(d_o, Q_TILE, W, dout + q0 * (size_t)C, C, n_q, HS, 1);
            pack(panels, q, W, 1, Q_TILE, HS, MR);
            tile_product(p, panels, HS, 1, MR, k_t, Q_TILE, K_TILE, HS, 0);
            pack(panels, d_o, W, 1, Q_TILE, HS, MR);
            tile_product(ds, panels, HS, 1, MR, v_t, Q_TILE, K_TILE, HS, 0);
            for (int i = 0; i < Q_TILE; i++) {
                int there = i < n_q, at = there ? q0 + i : q0, visible = there ? at - k0 + 1 : 0;
                score_row_backward(p + i * K_TILE, ds + i * K_TILE, out + at * (size_t)C,
                                   d_o + i * W, lse[at], visible < n_k ? visible : n_k, HS);
            }
            tile_product(dv, p, 1, 1, K_TILE, d_o, K_TILE, W, Q_TILE, 1);
            tile_product(dk, ds, 1, 1, K_TILE, q, K_TILE, W, Q_TILE, 1);
            tile_product(dq, ds, K_TILE, K_TILE, 1, k, Q_TILE, W, K_TILE, 0);
            for (int i = 0; i < n_q; i++) {
                float* dq_row = dqkv + (q0 + i) * row;
                for (int d = 0; d < HS; d++) {
                    dq_row[d] = (k0 > 0 ? dq_row[d] : 0) + scale * dq[i * W + d];
                }
            }
        }
        for (int j = 0; j < n_k; j++) {
            float *dk_row = dqkv + C + (k0 + j) * row, *dv_row = dk_row + C;
            // q held Q log2(e) / sqrt(HS), so what is left of the scale is ln 2
            for (int d = 0; d < HS; d++) dk_row[d] = LN2 * dk[j * W + d];
            for (int d = 0; d < HS; d++) dv_row[d] = dv[j * W + d];
        }
    }
}

void attention_backward(float* dqkv, const float* dout, const float* out, const float* lse,
                        const float* qkv, int B, int T, int C, int NH) {
    double begin = op_begin();
    int HS = C / NH;
    #pragma omp parallel for schedule(dynamic)
    for (int bh = 0; bh < B * NH; bh++) {
        size_t b = bh / NH, h = bh % NH, at = b * T * C + h * HS, at3 = b * T * 3 * C + h * HS;
        const float* lse_bh = lse + (size_t)bh * T;
        attention_backward_head(dqkv + at3, dout + at, out + at, lse_bh, qkv + at3, T, C, HS);
    }
    op_end("attention_backward", begin, 5.0 * B * NH * T * (double)T * HS, 36.0 * B * T * C);
}

// ------------------------------------------------------------------------------------------------
// Softmax and loss of rows of logits: loss = log sum_v exp(logits_v) - logits_target
//   logits (N,Vp), of which V columns count   losses, targets (N)   Bound by memory.
//   Backward at once, in place: dlogits = scale * (softmax - onehot), 0 in the padding.

static float softmax_loss(float* logits, int target, float scale, int V, int Vp) {
    for (int v = V; v < Vp; v++) logits[v] = -INFINITY;
    Vec most = vec_set(-INFINITY), sum = {0};
    for (int v = 0; v < Vp; v += LANES) most = vec_max(most, vec_load(logits + v));
    float m = vec_max_lane(most), target_logit = logits[target];
    for (int v = 0; v < Vp; v += LANES) {
        Vec e = vec_exp2((vec_load(logits + v) - m) * LOG2E);
        vec_store(logits + v, e);
        sum += e;
    }
    float total = vec_sum(sum);
    float unit = scale / total;
    for (int v = 0; v < Vp; v += LANES) vec_store(logits + v, vec_load(logits + v) * unit);
    logits[target] -= scale;
    return logf(total) + (m - target_logit);
}

void classifier_softmax(float* logits, float* losses, const int* targets, float scale, size_t N,
                        int V, int Vp) {
    double begin = op_begin();
    #pragma omp parallel for
    for (size_t i = 0; i < N; i++) {
        losses[i] = softmax_loss(logits + i * Vp, targets[i], scale, V, Vp);
    }
    op_end("classifier_softmax", begin, 0, 8.0 * N * Vp);
}

// ------------------------------------------------------------------------------------------------
// AdamW on n elements, with decoupled decay:
//   m += (1 - b1)(g - m)    v += (1 - b2)(g^2 - v)    w = (1 - lr decay) w - lr m' / (sqrt(v') +
//   eps) g = clip * grads; m' = m / (1 - b1^t), v' = v / (1 - b2^t) undo the start from zero.
//   Bound by memory: 28 n bytes.        source: arXiv:1711.05101, algorithm 2

#define ADAM_BETA1 0.9f
#define ADAM_BETA2 0.95f
#define ADAM_EPS 1e-8f

void adamw_update(float* w, float* m, float* v, const float* grads, float clip, float lr,
                  float decay, long long step, size_t n) {
    float c1 = (float)(1 - pow(ADAM_BETA1, (double)step + 1));
    float c2 = (float)(1 - pow(ADAM_BETA2, (double)step + 1));
    double begin = op_begin();
    #pragma omp parallel for simd
    for (size_t i = 0; i < n; i++) {
        float g = clip * grads[i];
        m[i] += (1 - ADAM_BETA1) * (g - m[i]);
        v[i] += (1 - ADAM_BETA2) * (g * g - v[i]);
        w[i] = (1 - lr * decay) * w[i] - lr * (m[i] / c1) / (sqrtf(v[i] / c2) + ADAM_EPS);
    }
    op_end("adamw_update", begin, 0, 28.0 * n);
}

// ------------------------------------------------------------------------------------------------
// Muon on one matrix: momentum, then the nearest (half-)orthogonal matrix in place of the update
//   m += (1 - b)(g - m)    G = g + b (m - g)    X = NewtonSchulz(G / |G|)        g = clip * grads
//   w = (1 - lr decay) w - lr sqrt(max(1, rows / cols)) X
//   Source: Jordan et al., "Muon: an optimizer for hidden layers",
//   kellerjordan.github.io/posts/muon.
//
// Newton-Schulz: with G = U S V^T, the odd polynomial f(X) = (a I + b X X^T + c (X X^T)^2) X acts
// on the singular values alone. Five rounds send all of (0.002, 1] to about 1 (to 0.68 .. 1.20: the
// coefficients trade the limit 1 for speed at the small end, where the slope is a^5 = 485).
// Bound by compute: 5 (4 m^2 n + 2 m^3) FLOPs for sides m <= n.

// x (rows, cols) in place, of norm 1 at most. scratch: rows * cols + 2 m^2 floats.
void newton_schulz(float* x, float* scratch, size_t rows, size_t cols) {
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    size_t m = min_size(rows, cols), n = rows * cols;
    float *gram = scratch, *poly = gram + m * m, *next = poly + m * m;
    View whole = view(x, cols), transposed = view_transposed(x, cols);
    for (int step = 0; step < 5; step++) {
        // The Gram matrix of the short side: X X^T, or X^T X when X is tall.
        if (rows > cols) matmul(gram, transposed, whole, NULL, NULL, m, m, (int)rows);
        else matmul(gram, whole, transposed, NULL, NULL, m, m, (int)cols);
        matmul(poly, view(gram, m), view(gram, m), NULL, NULL, m, m, (int)m);
        for (size_t i = 0; i < m * m; i++) poly[i] = b * gram[i] + c * poly[i];
        for (size_t i = 0; i < m; i++) poly[i * m + i] += a;
        if (rows > cols) matmul(next, whole, view(poly, m), NULL, NULL, rows, m, (int)m);
        else matmul(next, view(poly, m), whole, NULL, NULL, m, cols, (int)m);
        memcpy(x, next, sizeof(float) * n);
    }
}

size_t muon_scratch(size_t rows, size_t cols) {  // floats for X and its Newton-Schulz
    size_t m = min_size(rows, cols);
    return 2 * rows * cols + 2 * m * m;
}

void muon_update(float* w, float* momentum, const float* grads, float clip, const Update* u,
                 float* scratch, size_t rows, size_t cols) {
    size_t n = rows * cols;
    float *x = scratch, beta = u->muon_momentum, size = rows > cols ? sqrtf((float)rows / cols) : 1;
    double squares = 0;
    for (size_t i = 0; i < n; i++) {
        float g = clip * grads[i];
        momentum[i] += (1 - beta) * (g - momentum[i]);
        x[i] = g + beta * (momentum[i] - g);
        squares += (double)x[i] * x[i];
    }
    double unit = squares > 0 ? 1 / sqrt(squares) : 0;  // a zero gradient stays zero
    for (size_t i = 0; i < n; i++) x[i] = (float)(x[i] * unit);
    newton_schulz(x, scratch + n, rows, cols);
    for (size_t i = 0; i < n; i++) {
        w[i] = (1 - u->muon_lr * u->weight_decay) * w[i] - u->muon_lr * size * x[i];
    }
}

// ------------------------------------------------------------------------------------------------
// The model: its memory, all of it taken once

typedef struct {  // what backward needs of one layer's forward
    float *ln1, *ln1_mean, *ln1_rstd, *qkv, *atty, *att_lse, *residual2;
    float *ln2, *ln2_mean, *ln2_rstd, *fch, *fch_gelu, *residual3;
} Block;

enum { CLASSIFIER_ROWS = 512 };  // rows of logits that exist at a time

struct GPT {
    GPTConfig config;
    Layout layout;
    int B, T, *inputs, *targets;
    float *arena[N_ARENAS], *acts;  // all below lies in acts
    Block* blocks;
    float *encoded, *lnf, *lnf_mean, *lnf_rstd, *logits, *losses;
    float *dresidual, *dln, *dfch, *dqkv, *datty;  // gradients on the way down, a layer at a time
    float *cache, *decode;  // (L,2,T,C) keys, values; one token's activations
    float* scratch;         // Muon's, (threads, scratch_size)
    size_t scratch_size;
    int threads, n_muon;
    double step_loss;
    int losses_ready;  // the classifier has run for the last forward
};

typedef struct {  // one of Muon's matrices
    size_t param, momentum, rows, cols;  // offsets in the arenas
} MuonMatrix;

// The i-th from the end of the table, so that the MLP's large ones come first and threads end
// together; returns 0 behind the last.
static int muon_matrix(const Layout* layout, int i, MuonMatrix* out) {
    for (int tensor = N_TENSORS - 1; tensor >= 0; tensor--) {
        const Tensor* t = &layout->tensor[tensor];
        if (t->optimizer != MUON) continue;
        size_t rows = (size_t)(t->rows / t->blocks), cols = (size_t)t->cols, at = i * rows * cols;
        MuonMatrix matrix = {t->offset[PARAMS] + at, t->offset[MUON_M] + at, rows, cols};
        *out = matrix;
        if (i < t->copies * t->blocks) return 1;
        i -= t->copies * t->blocks;
    }
    return 0;
}

// A piece of a block, on a cache line of its own; from NULL on it only counts.
static float* carve(float* base, size_t* used, size_t n) {
    float* piece = base ? base + *used : NULL;
    *used += (n + 15) / 16 * 16;
    return piece;
}

// Lays out the activations from base, for gradients only where there are any; returns their size.
static size_t carve_acts(GPT* m, float* base) {
    size_t N = (size_t)m->B * m->T, C = (size_t)m->config.C, L = (size_t)m->config.L, used = 0;
    size_t G = m->layout.size[GRADS] > 0 ? N * C : 0;
    #define CARVE(size) carve(base, &used, size)
    m->encoded = CARVE(N * C);
    for (Block* a = m->blocks; a < m->blocks + L; a++) {
        a->ln1 = CARVE(N * C), a->ln1_mean = CARVE(N), a->ln1_rstd = CARVE(N);
        a->qkv = CARVE(3 * N * C), a->atty = CARVE(N * C), a->att_lse = CARVE(N * m->config.NH);
        a->residual2 = CARVE(N * C);
        a->ln2 = CARVE(N * C), a->ln2_mean = CARVE(N), a->ln2_rstd = CARVE(N);
        a->fch = CARVE(4 * N * C), a->fch_gelu = CARVE(4 * N * C), a->residual3 = CARVE(N * C);
    }
    m->lnf = CARVE(N * C), m->lnf_mean = CARVE(N), m->lnf_rstd = CARVE(N);
    m->logits = CARVE(min_size(N, CLASSIFIER_ROWS) * m->config.Vp), m->losses = CARVE(N);
    m->dresidual = CARVE(G), m->dln = CARVE(G), m->dfch = CARVE(4 * G);
    m->dqkv = CARVE(3 * G), m->datty = CARVE(G);
    m->cache = CARVE(L * 2 * m->T * C);
    m->decode = CARVE(8 * C + (size_t)m->T * m->config.NH + m->config.Vp);
    m->scratch = CARVE(m->threads * m->scratch_size);
    #undef CARVE
    return used;
}

// Prints what will be allocated and refuses what the machine does not have.
static void plan_memory(const GPT* m, size_t acts) {
    const size_t* size = m->layout.size;
    const double mib = 4.0 / (1 << 20);
    double state = mib * (size[ADAM_M] + size[ADAM_V] + size[MUON_M]), kib = INFINITY;
    double total = mib * (size[PARAMS] + size[GRADS] + acts) + state;
    char line[128];
    FILE* file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "MemAvailable: %lf", &kib);
    if (file) fclose(file);
    if (size[GRADS] > 0) {
        printf("memory      %.1f MiB: weights %.1f, gradients %.1f, optimizer %.1f, other %.1f\n",
               total, mib * size[PARAMS], mib * size[GRADS], state, mib * acts);
    }
    if (total > kib / 1024) {
        die(EXIT_RESOURCES, "memory", "%.1f MiB are free, need %.1f", kib / 1024, total);
    }
}

static void fill_zero(float* x, size_t n) {
    #pragma omp parallel for
    for (size_t i = 0; i < n; i += 65536) memset(x + i, 0, sizeof(float) * min_size(65536, n - i));
}

// Zeroed, so that nothing is touched for the first time during the first step.
static float* allocate(size_t n) {
    float* block = NULL;
    if (posix_memalign((void**)&block, 64, sizeof(float) * (n + 16))) {
        die(EXIT_RESOURCES, "memory", "none left, need %zu bytes", sizeof(float) * n);
    }
    fill_zero(block, n);
    return block;
}

GPT* gpt_create(GPTConfig config, Optimizer matrices, const char* precision, int B, int T) {
    if (is(precision, "bf16")) die(EXIT_USAGE, "--precision", "bf16, need fp32 on a CPU (or auto)");
    GPT* m = (GPT*)xmalloc(1, sizeof(GPT));
    m->config = config, m->B = B, m->T = T;
    m->layout = layout_of(config, matrices);
    m->blocks = (Block*)xmalloc((size_t)config.L, sizeof(Block));
    m->inputs = (int*)xmalloc((size_t)B * T, sizeof(int));
    m->targets = (int*)xmalloc((size_t)B * T, sizeof(int));
    for (MuonMatrix x; muon_matrix(&m->layout, m->n_muon, &x); m->n_muon++) {
        size_t size = muon_scratch(x.rows, x.cols);
        m->scratch_size = size > m->scratch_size ? size : m->scratch_size;
    }
    m->threads = (int)min_size((size_t)omp_get_max_threads(), (size_t)m->n_muon);
    size_t acts = carve_acts(m, NULL);
    plan_memory(m, acts);
    for (int i = 0; i < N_ARENAS; i++) m->arena[i] = allocate(m->layout.size[i]);
    m->acts = allocate(acts);
    carve_acts(m, m->acts);
    return m;
}

void gpt_free(GPT* m) {
    for (int arena = 0; arena < N_ARENAS; arena++) free(m->arena[arena]);
    free(m->acts), free(m->blocks), free(m->inputs), free(m->targets), free(m);
}

const Layout* gpt_layout(const GPT* m) { return &m->layout; }

static float* tensor_at(const GPT* m, Arena arena, int tensor, int l) {  // layer l's copy
    const Tensor* t = &m->layout.tensor[tensor];
    return m->arena[arena] + t->offset[arena] + l * copy_size(t);
}

void gpt_get(GPT* m, Arena arena, int tensor, size_t first, size_t count, float* host) {
    memcpy(host, tensor_at(m, arena, tensor, 0) + first, sizeof(float) * count);
}

void gpt_set(GPT* m, Arena arena, int tensor, size_t first, size_t count, const float* host) {
    memcpy(tensor_at(m, arena, tensor, 0) + first, host, sizeof(float) * count);
}

// Element e of tensor t is component e % 4 of the normal numbers at counter {e / 4, t}.
void gpt_init_weights(GPT* m, uint64_t seed) {
    for (int tensor = 0; tensor < N_TENSORS; tensor++) {
        const Tensor* t = &m->layout.tensor[tensor];
        float* w = tensor_at(m, PARAMS, tensor, 0);
        #pragma omp parallel for
        for (size_t e = 0; e < file_size(t); e += 4) {
            float normal[4] = {0, 0, 0, 0};
            if (t->std > 0) philox_normal4(normal, seed, e / 4, (uint64_t)tensor);
            for (size_t j = 0; j < min_size(4, file_size(t) - e); j++) {
                w[e + j] = t->mean + t->std * normal[j];
            }
        }
    }
}

// ------------------------------------------------------------------------------------------------
// The model: forward, loss, backward

#define W(tensor) tensor_at(m, PARAMS, tensor, l)  // weight and gradient of layer l
#define G(tensor) tensor_at(m, GRADS, tensor, l)

void gpt_forward(GPT* m, const int* inputs, const int* targets) {
    int B = m->B, T = m->T, C = m->config.C, NH = m->config.NH, l = 0;
    size_t N = (size_t)B * T;
    memcpy(m->inputs, inputs, sizeof(int) * N);
    memcpy(m->targets, targets, sizeof(int) * N);
    m->losses_ready = 0;
    embedding_forward(m->encoded, inputs, W(WTE), W(WPE), B, T, C);
    const float* x = m->encoded;  // the residual stream
    for (; l < m->config.L; l++) {
        Block a = m->blocks[l];
        layernorm_forward(a.ln1, a.ln1_mean, a.ln1_rstd, x, W(LN1W), W(LN1B), N, C);
        matmul_forward(a.qkv, a.ln1, W(QKVW), W(QKVB), NULL, N, C, 3 * C);
        attention_forward(a.atty, a.att_lse, a.qkv, B, T, C, NH);
        matmul_forward(a.residual2, a.atty, W(ATTPROJW), W(ATTPROJB), x, N, C, C);
        layernorm_forward(a.ln2, a.ln2_mean, a.ln2_rstd, a.residual2, W(LN2W), W(LN2B), N, C);
        matmul_forward(a.fch, a.ln2, W(FCW), W(FCB), NULL, N, C, 4 * C);
        gelu_forward(a.fch_gelu, a.fch, N * 4 * C);
        matmul_forward(a.residual3, a.fch_gelu, W(FCPROJW), W(FCPROJB), a.residual2, N, 4 * C, C);
        x = a.residual3;
    }
    l = 0;
    layernorm_forward(m->lnf, m->lnf_mean, m->lnf_rstd, x, W(LNFW), W(LNFB), N, C);
}

// Logits and losses and, unless scale is 0, the gradients of both, CLASSIFIER_ROWS rows at a time,
// so that no (B,T,V) buffer exists: dlnf is assigned, dwte added to.
static void classifier(GPT* m, float* dlnf, float scale) {
    int C = m->config.C, V = m->config.V, Vp = m->config.Vp, l = 0;
    size_t N = (size_t)m->B * m->T;
    for (size_t i = 0; i < N; i += CLASSIFIER_ROWS) {
        size_t n = min_size(CLASSIFIER_ROWS, N - i);
        const float* lnf = m->lnf + i * C;
        double begin = op_begin(), bytes = 4.0 * (n + (double)C) * Vp;
        matmul(m->logits, view(lnf, C), view_transposed(W(WTE), C), NULL, NULL, n, Vp, C);
        op_end("classifier_forward", begin, 2.0 * n * C * Vp, bytes);
        classifier_softmax(m->logits, m->losses + i, m->targets + i, scale / N, n, V, Vp);
        if (scale == 0) continue;
        begin = op_begin();
        matmul(dlnf + i * C, view(m->logits, Vp), view(W(WTE), C), NULL, NULL, n, C, Vp);
        matmul(G(WTE), view_transposed(m->logits, Vp), view(lnf, C), G(WTE), NULL, Vp, C, (int)n);
        op_end("classifier_backward", begin, 4.0 * n * C * Vp, 2 * bytes);
    }
    m->losses_ready = 1;
}

void gpt_losses(GPT* m, float* losses) {
    if (!m->losses_ready) classifier(m, NULL, 0);
    memcpy(losses, m->losses, sizeof(float) * m->B * m->T);
}

float gpt_loss(GPT* m) {
    size_t N = (size_t)m->B * m->T;
    double sum = 0;
    if (!m->losses_ready) classifier(m, NULL, 0);
    for (size_t i = 0; i < N; i++) sum += m->losses[i];
    return (float)(sum / N);
}

void gpt_zero_grad(GPT* m) {
    fill_zero(m->arena[GRADS], m->layout.size[GRADS]);
    m->step_loss = 0;
}

void gpt_backward(GPT* m, float scale) {
    int B = m->B, T = m->T, C = m->config.C, L = m->config.L, l = 0;
    size_t N = (size_t)B * T;
    float* dx = m->dresidual;  // of the residual stream: every layer's input gradient adds to it
    classifier(m, m->dln, scale);
    m->step_loss += (double)scale * gpt_loss(m);
    memset(dx, 0, sizeof(float) * N * C);
    layernorm_backward(dx, G(LNFW), G(LNFB), m->dln, m->blocks[L - 1].residual3, W(LNFW),
                       m->lnf_mean, m->lnf_rstd, N, C);
    for (l = L - 1; l >= 0; l--) {
        Block a = m->blocks[l];
        const float* x = l > 0 ? m->blocks[l - 1].residual3 : m->encoded;
        // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
        matmul_backward(m->dfch, G(FCPROJW), G(FCPROJB), dx, a.fch_gelu, W(FCPROJW), N, 4 * C, C);
        gelu_backward(m->dfch, a.fch, N * 4 * C);
        matmul_backward(m->dln, G(FCW), G(FCB), m->dfch, a.ln2, W(FCW), N, C, 4 * C);
        layernorm_backward(dx, G(LN2W), G(LN2B), m->dln, a.residual2, W(LN2W), a.ln2_mean,
                           a.ln2_rstd, N, C);
        // residual2 = x + attproj(attention(qkv(ln1(x))))
        matmul_backward(m->datty, G(ATTPROJW), G(ATTPROJB), dx, a.atty, W(ATTPROJW), N, C, C);
        attention_backward(m->dqkv, m->datty, a.atty, a.att_lse, a.qkv, B, T, C, m->config.NH);
        matmul_backward(m->dln, G(QKVW), G(QKVB), m->dqkv, a.ln1, W(QKVW), N, C, 3 * C);
        layernorm_backward(dx, G(LN1W), G(LN1B), m->dln, x, W(LN1W), a.ln1_mean, a.ln1_rstd, N, C);
    }
    l = 0;
    embedding_backward(G(WTE), G(WPE), dx, m->inputs, B, T, C);
}

// ------------------------------------------------------------------------------------------------
// The model: update

// Sum of squares in double, over slices of fixed bounds that are added in order.
static double sum_of_squares(const float* x, size_t n) {
    enum { SLICES = 256 };
    double partial[SLICES], sum = 0;
    #pragma omp parallel for
    for (int slice = 0; slice < SLICES; slice++) {
        double squares = 0;
        #pragma omp simd reduction(+ : squares)
        for (size_t i = n * slice / SLICES; i < n * (slice + 1) / SLICES; i++) {
            squares += (double)x[i] * x[i];
        }
        partial[slice] = squares;
    }
    for (int slice = 0; slice < SLICES; slice++) sum += partial[slice];
    return sum;
}

// The norm of all gradients, and whether an update by them stays finite: squares of up to 1e36 fit
// into a float, and the optimizers divide by no less than the size of what they multiply.
static StepStats gradient_stats(const GPT* m) {
    StepStats stats = {(float)m->step_loss, 0, 1, -1};
    double squares = 0, begin = op_begin();
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &m->layout.tensor[i];
        double part = sum_of_squares(tensor_at(m, GRADS, i, 0), t->copies * copy_size(t));
        if (!(part < 1e36) && stats.bad_tensor < 0) stats.bad_tensor = i;
        squares += part;
    }
    op_end("gradient_norm", begin, 0, 4.0 * m->layout.size[GRADS]);
    stats.grad_norm = sqrt(squares);
    stats.finite = stats.bad_tensor < 0 && isfinite(stats.loss);
    return stats;
}

StepStats gpt_update(GPT* m, const Update* u) {
    StepStats stats = gradient_stats(m);
    if (!stats.finite) return stats;
    int clipped = u->grad_clip > 0 && stats.grad_norm > u->grad_clip, l = 0;
    float clip = clipped ? (float)(u->grad_clip / stats.grad_norm) : 1;
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &m->layout.tensor[i];
        if (t->optimizer != ADAMW) continue;
        float decay = tensor_is_vector(t) ? 0 : u->adam_weight_decay;
        adamw_update(W(i), tensor_at(m, ADAM_M, i, 0), tensor_at(m, ADAM_V, i, 0), G(i), clip,
                     u->lr, decay, u->step, t->copies * copy_size(t));
    }
    if (m->n_muon == 0) return stats;
    double begin = op_begin();
    #pragma omp parallel for schedule(dynamic) num_threads(m->threads)
    for (int i = 0; i < m->n_muon; i++) {
        MuonMatrix x = {0, 0, 0, 0};
        muon_matrix(&m->layout, i, &x);
        float* scratch = m->scratch + omp_get_thread_num() * m->scratch_size;
        muon_update(m->arena[PARAMS] + x.param, m->arena[MUON_M] + x.momentum,
                    m->arena[GRADS] + x.param, clip, u, scratch, x.rows, x.cols);
    }
    op_end("muon_update", begin, muon_flops(&m->layout), 20.0 * m->layout.size[MUON_M]);
    return stats;
}

// ------------------------------------------------------------------------------------------------
// The model: one token at a time; the cache (L,2,T,C) keeps keys and values of those before

// out (OC) = bias + weight x, or += if accumulate. Bound by memory: reads the weight once.
static void matvec(float* out, const float* x, const float* weight, const float* bias, int C,
                   int OC, int accumulate) {
    #pragma omp parallel for if (OC * (size_t)C > 65536)
    for (int i = 0; i < OC; i++) {
        const float* row = weight + (size_t)i * C;
        float sum = 0;
        #pragma omp simd reduction(+ : sum)
        for (int c = 0; c < C; c++) sum += row[c] * x[c];
        out[i] = sum + (bias ? bias[i] : 0) + (accumulate ? out[i] : 0);
    }
}

// One head of one query against n keys and values, rows C apart; p (n) is scratch.
static void decode_attention(float* out, float* p, const float* q, const float* k, const float* v,
                             int n, int C, int HS) {
    float most = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++) {
        p[j] = 0;
        for (int d = 0; d < HS; d++) p[j] += q[d] * k[(size_t)j * C + d] / sqrtf((float)HS);
        most = p[j] > most ? p[j] : most;
    }
    for (int j = 0; j < n; j++) sum += p[j] = expf(p[j] - most);
    memset(out, 0, sizeof(float) * HS);
    for (int j = 0; j < n; j++) {
        for (int d = 0; d < HS; d++) out[d] += p[j] / sum * v[(size_t)j * C + d];
    }
}

void gpt_decode(GPT* m, int token, int position, float* logits) {
    int C = m->config.C, NH = m->config.NH, HS = C / NH, T = m->T, l = 0;
    float *x = m->decode, *ln = x + C, *q = ln + C, *atty = q + C, *fch = q + 2 * C, *p = q + 6 * C;
    float mean, rstd;
    embedding_forward(x, &token, W(WTE), W(WPE) + (size_t)position * C, 1, 1, C);
    for (; l < m->config.L; l++) {
        float *keys = m->cache + (size_t)l * 2 * T * C, *values = keys + (size_t)T * C;
        size_t square = (size_t)C * C, at = (size_t)position * C;
        layernorm_forward(ln, &mean, &rstd, x, W(LN1W), W(LN1B), 1, C);
        matvec(q, ln, W(QKVW), W(QKVB), C, C, 0);
        matvec(keys + at, ln, W(QKVW) + square, W(QKVB) + C, C, C, 0);
        matvec(values + at, ln, W(QKVW) + 2 * square, W(QKVB) + 2 * C, C, C, 0);
        #pragma omp parallel for if (position > 64)
        for (int h = 0; h < NH; h++) {
            decode_attention(atty + h * HS, p + (size_t)h * T, q + h * HS, keys + h * HS,
                             values + h * HS, position + 1, C, HS);
        }
        matvec(x, atty, W(ATTPROJW), W(ATTPROJB), C, C, 1);
        layernorm_forward(ln, &mean, &rstd, x, W(LN2W), W(LN2B), 1, C);
        matvec(fch, ln, W(FCW), W(FCB), C, 4 * C, 0);
        gelu_forward(fch, fch, 4 * (size_t)C);
        matvec(x, fch, W(FCPROJW), W(FCPROJB), 4 * C, C, 1);
    }
    l = 0;
    layernorm_forward(ln, &mean, &rstd, x, W(LNFW), W(LNFB), 1, C);
    matvec(logits, ln, W(WTE), NULL, C, m->config.V, 0);
}

#undef W
#undef G
#endif  // GPT_CUDA
// ------------------------------------------------------------------------------------------------
// Reading models: a folder (config.json, model.safetensors), the hub's or ours, or an llm.c .bin

typedef struct {
    const char* path;  // NULL: a name, so random weights
    int is_folder;
    GPTConfig config;  // of a name it has neither vocabulary nor context
} Source;

GPTConfig with_vocabulary(GPTConfig config, int V) {
    config.V = V;
    config.Vp = (V + 127) / 128 * 128;
    return config;
}

// The tensors of a model file, a record a layer's copy, under the hub's names and as it keeps them.
int model_records(const Layout* layout, Record* records) {
    int n = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &layout->tensor[i];
        for (int l = 0; l < t->copies; l++) {
            Record r = {"transformer.", tensor_is_vector(t) ? 0 : t->file_rows, (size_t)t->cols,
                        t->hub_transposed, PARAMS, i, l * t->file_rows * t->cols};
            snprintf(r.name + 12, sizeof r.name - 12, t->hub_name, l);
            records[n++] = r;
        }
    }
    return n;
}

// The optimizer's, under our own names: adam_m.wte, muon.qkvw, all layers in one.
int state_records(const Layout* layout, Record* records) {
    const char* const prefix[N_ARENAS] = {"", "", "adam_m", "adam_v", "muon"};
    int n = 0;
    for (int arena = ADAM_M; arena < N_ARENAS; arena++) {
        for (int i = 0; i < N_TENSORS; i++) {
            const Tensor* t = &layout->tensor[i];
            if (t->offset[arena] == NOT_THERE) continue;
            Record r = {"", 0, file_size(t), 0, arena, i, 0};
            snprintf(r.name, sizeof r.name, "%s.%s", prefix[arena], t->name);
            records[n++] = r;
        }
    }
    return n;
}

void get_numbers(void* model, const Record* r, size_t at, size_t count, float* numbers) {
    gpt_get((GPT*)model, (Arena)r->arena, r->tensor, r->first + at, count, numbers);
}

void set_numbers(void* model, const Record* r, size_t at, size_t count, float* numbers) {
    gpt_set((GPT*)model, (Arena)r->arena, r->tensor, r->first + at, count, numbers);
}

// llm.c's file: int32[256] (magic 20240326, version 3: fp32 or 5: bf16, context, V, L, NH, C, Vp),
// then the tensors of our table in its order, wte with its padding.
TensorFile* open_llmc(const char* path, GPTConfig* config) {
    uint64_t size;
    int32_t h[256] = {0};
    TensorFile* f = tensor_file_new(path, &size);
    if (size >= sizeof h) read_all(f->fd, path, h, sizeof h, 0);
    if (h[0] != 20240326 || (h[1] != 3 && h[1] != 5)) {
        die(EXIT_INPUT, path, "magic %d, version %d, need 20240326, version 3 or 5", h[0], h[1]);
    }
    GPTConfig c = {h[2], h[3], h[7], h[4], h[5], h[6]};
    config_check(&c, path, EXIT_INPUT);
    *config = with_vocabulary(c, c.V);
    if (h[7] != config->Vp) die(EXIT_INPUT, path, "padded to %d, need %d", h[7], config->Vp);
    Layout layout = layout_of(*config, FROZEN);
    Record* records = (Record*)xmalloc(N_TENSORS * (size_t)c.L, sizeof(Record));
    Record padding = {"padding", (size_t)(c.Vp - c.V), (size_t)c.C, 0, PARAMS, WTE, 0};
    int n = model_records(&layout, records);
    NumberType type = h[1] == 3 ? F32 : BF16;
    f->data = sizeof h;
    for (int i = 0; i < n; i++) {
        tensor_file_add(f, &records[i], type);
        if (records[i].tensor == WTE && c.Vp > c.V) tensor_file_add(f, &padding, type);
    }
    free(records);
    tensor_file_check(f, size);
    return f;
}

Source find_source(const char* model) {
    const char* const keys[] = {"n_positions", "vocab_size", "n_layer", "n_head", "n_embd"};
    int found[] = {1024, 0, 0, 0, 0};
    struct stat info;
    Source source;
    memset(&source, 0, sizeof source);
    if (config_from_name(&source.config, model)) return source;
    source.path = model;
    if (stat(model, &info)) die(EXIT_USAGE, model, "no such model, need dN, gpt2, .. or a path");
    source.is_folder = S_ISDIR(info.st_mode);
    if (source.is_folder) {
        char* path = xprintf("%s/config.json", model);
        json_read_counts(path, keys, found, 5);
        GPTConfig c = {found[0], found[1], 0, found[2], found[3], found[4]};
        config_check(&c, path, EXIT_INPUT);
        source.config = with_vocabulary(c, c.V);
        free(path);
    } else {
        tensor_file_close(open_llmc(model, &source.config));
    }
    return source;
}

// ------------------------------------------------------------------------------------------------
// The run: all that a training run is, beside the model

typedef struct {
    Options o;
    OptionTable table;
    Source source;
    GPTConfig config;
    Optimizer matrices;
    Schedule schedule;
    GPT* model;
    Tokenizer* tokenizer;      // NULL: texts are ids, bits per byte are unknown
    char *vocab_json, *merges;  // the vocabulary as the hub's files
    Dataset train, val;
    float* floor;              // nats that each validation token costs, or NULL
    long long step, saved_step;  // updates made; of the newest checkpoint, or -1
    double clock;              // seconds of training: evaluating, sampling and saving do not count
    FILE* log;
    Facts facts;               // the fingerprint: what must be the same for a run to go on
    Record* records;           // room for the tensors of a file
    float* buffer;             // and for their numbers
    Scorer batch;              // the tokens of a micro batch
    Questions questions;       // --eval
} Run;

static volatile sig_atomic_t stop_signal, save_signal;

// SIGTERM, SIGINT: save and stop; the second time at once. SIGUSR1: save and go on.
void on_signal(int signal) {
    if (signal == SIGUSR1) save_signal = 1;
    else if (stop_signal) _exit(128 + signal);
    else stop_signal = signal;
}

void catch_signals(void) {
    const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGPIPE, SIGXFSZ};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    for (int i = 0; i < 5; i++) {
        action.sa_handler = i < 3 ? on_signal : SIG_IGN;
        sigaction(signals[i], &action, NULL);
    }
}

// Whatever changes the numbers of a run; not precision, device, threads or micro batch.
void make_fingerprint(Run* r) {
    const char* const fields[] = {
        "seed", "total_batch", "seq", "optimizer", "lr", "muon_lr", "weight_decay", "steps",
        "adam_weight_decay", "grad_clip", "schedule", "warmup", "cooldown", "final_lr"};
    const GPTConfig* c = &r->config;
    const char* merges = r->merges ? r->merges : "";
    char text[32];
    facts_add(&r->facts, "model", "%dx%d heads %d context %d", c->L, c->C, c->NH, c->context);
    facts_add(&r->facts, "vocabulary", "%d %08x", c->V, crc32c(0, merges, strlen(merges)));
    facts_add(&r->facts, "data", "%08x", dataset_fingerprint(&r->train));
    facts_add(&r->facts, "momentum-warmup", "%lld", r->schedule.momentum_warmup);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const Option* row = option_rows;
        while (!is(row->name, fields[i])) row++;
        facts_add(&r->facts, option_name(row), "%s", option_text(&r->table, row, text));
    }
}

// ------------------------------------------------------------------------------------------------
// Saving and resuming

const char* step_path(const Run* r, long long step) {
    return xprintf("%s/step_%06lld", r->o.out, step);
}

// Where wsd begins to fall, else -1: the last checkpoint up to there can be trained on for longer.
long long fall_begins(const Run* r, long long steps) {
    return is(r->o.schedule, "wsd") ? steps - llround(r->o.cooldown * (double)steps) : -1;
}

// Returns 0 when it could not be written; the run goes on.
int save_checkpoint(Run* r) {
    const Layout* layout = gpt_layout(r->model);
    const GPTConfig* g = &r->config;
    long long tokens = r->step * r->o.total_batch;
    Facts none = {0, {{0}}, {{0}}}, facts = r->facts;
    Checkpoint c;
    facts_add(&facts, "step", "%lld", r->step);
    facts_add(&facts, "tokens", "%lld", tokens);
    facts_add(&facts, "next-sample", "%lld", tokens / r->o.seq);
    checkpoint_begin(&c, r->o.out, r->step);
    int n = model_records(layout, r->records);
    checkpoint_tensors(&c, "model.safetensors", &none, r->records, n, get_numbers, r->model,
                       r->buffer);
    n = state_records(layout, r->records);
    checkpoint_tensors(&c, "optimizer.safetensors", &facts, r->records, n, get_numbers, r->model,
                       r->buffer);
    checkpoint_hub_files(&c, g->V, g->context, g->C, g->L, g->NH, r->vocab_json, r->merges);
    int error = checkpoint_commit(&c, r->o.out);
    if (error == EDOM) die(EXIT_NUMERIC, c.path, "%s is not finite, need finite weights", c.bad);
    if (error) fprintf(stderr, "warning: %s: not written: %s\n", c.path, strerror(error));
    if (error) return 0;
    r->saved_step = r->step;
    checkpoint_prune(r->o.out, r->o.keep, fall_begins(r, r->o.steps));
    return 1;
}

// Where to go on from; called before anything is derived from the number of steps. Changes nothing.
void find_checkpoint(Run* r) {
    struct stat info;
    r->step = checkpoint_newest(r->o.out, LLONG_MAX);
    if (r->step < 0) return;
    TensorFile* f = tensor_file_open(xprintf("%s/optimizer.safetensors", step_path(r, r->step)));
    const char *steps = facts_find(&f->facts, "steps"), *warmup = facts_find(&f->facts, "warmup");
    const char* momentum = facts_find(&f->facts, "momentum-warmup");
    const char* at = facts_find(&f->facts, "step");
    if (!steps || !warmup || !momentum || !at || strtoll(at, NULL, 10) != r->step) {
        die(EXIT_INPUT, f->path, "no schedule or another step, need the folder's own file");
    }
    long long before = strtoll(steps, NULL, 10);
    int asked = option_given(&r->table, "steps");
    int known = stat(xprintf("%s/options.tsv", r->o.out), &info) == 0;
    if (!asked && (!known || r->o.steps < before)) r->o.steps = before;
    if (r->o.steps < before) {
        die(EXIT_RESUME, "--steps", "%lld, need at least the %lld before", r->o.steps, before);
    }
    // Warm-ups that followed from the number of steps stay as they were.
    if (!option_given(&r->table, "warmup")) r->o.warmup = strtoll(warmup, NULL, 10);
    r->schedule.momentum_warmup = strtoll(momentum, NULL, 10);
    // More steps under wsd: on from the newest checkpoint before the rates began to fall.
    long long fall = fall_begins(r, before);
    if (r->o.steps > before && fall >= 0 && r->step > fall) {
        r->step = checkpoint_newest(r->o.out, fall);
        if (r->step < 0) die(EXIT_RESUME, r->o.out, "no checkpoint up to %lld, need one", fall);
    }
    r->saved_step = r->step;
    tensor_file_close(f);
}

// The checkpoints of a cooldown that the run goes back behind are kept, under another name.
void keep_cooled_checkpoints(const Run* r) {
    long long steps[MOST_CHECKPOINTS];
    int n = checkpoint_list(r->o.out, steps);
    for (int i = 0; i < n && steps[i] > r->step; i++) {
        char *from = checkpoint_path(r->o.out, "step", steps[i]);
        const char* prefix = checkpoint_is_whole(from) ? "cooled" : "broken";
        char* to = checkpoint_path(r->o.out, prefix, steps[i]);
        remove_folder(to);
        if (rename(from, to)) die_errno(EXIT_RESOURCES, from, "need to rename it");
        printf("resume      %s is kept as %s\n", from, to);
        free(from), free(to);
    }
}

// Every fact must be the same as in the checkpoint, but that there may be more steps now.
void load_optimizer(Run* r) {
    TensorFile* f = tensor_file_open(xprintf("%s/optimizer.safetensors", r->source.path));
    for (int i = 0; i < r->facts.n; i++) {
        const char *key = r->facts.key[i], *now = r->facts.value[i];
        const char* then = facts_find(&f->facts, key);
        if (is(key, "steps") || (then && is(then, now))) continue;
        die(EXIT_RESUME, f->path, "%s is now %s, need %s (or a new run with --model %s)", key, now,
            then ? then : "a run that has it", r->source.path);
    }
    int n = state_records(gpt_layout(r->model), r->records);
    records_load(f, r->records, n, set_numbers, r->model, r->buffer);
    tensor_file_close(f);
}

// ------------------------------------------------------------------------------------------------
// The model as score.h sees one

void run_batch(void* run) {
    Run* r = (Run*)run;
    gpt_forward(r->model, r->batch.inputs, r->batch.targets);
    gpt_losses(r->model, r->batch.losses);
}

void decode(void* model, int token, int position, float* logits) {
    gpt_decode((GPT*)model, token, position, logits);
}

void generate(const Run* r, size_t n, int context, int stop_at_end, uint64_t seed) {
    Writer w = {decode, r->model, r->tokenizer, r->config.V, context, r->o.temperature,
                (int)r->o.top_k, &stop_signal};
    write_text(&w, r->o.prompt, n, stop_at_end, seed);
}

// ------------------------------------------------------------------------------------------------
// Setting up

char* beside(const char* path, const char* name) {  // in the folder of a path or a glob
    const char* slash = strrchr(path, '/');
    return xprintf("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
}

// --bpe; else the model folder's merges; else vocab.bpe beside the training shards; else none.
void load_vocabulary(Run* r) {
    struct stat info;
    size_t size;
    char* path = xprintf("%s", r->o.bpe);
    if (!path[0] && r->source.is_folder) path = xprintf("%s/merges.txt", r->source.path);
    if (!r->o.bpe[0] && stat(path, &info)) path = beside(r->o.train, "vocab.bpe");
    if (!r->o.bpe[0] && stat(path, &info)) return;
    Tokenizer* tokenizer = tokenizer_load(path);
    int found = tokenizer->vocab_size, need = r->source.path ? r->source.config.V : found;
    int code = r->step < 0 ? EXIT_INPUT : EXIT_RESUME;
    if (found != need && r->o.bpe[0]) die(code, path, "vocabulary of %d, need %d", found, need);
    if (found != need) fprintf(stderr, "%s does not fit the model: texts print as ids\n", path);
    if (found != need) return;
    r->tokenizer = tokenizer;
    r->vocab_json = tokenizer_vocab_json(tokenizer, &size);
    r->merges = tokenizer_merges(tokenizer, &size);
}

// Validation shards with another vocabulary beside them would give a loss that means nothing.
void check_val_vocabulary(const Run* r) {
    struct stat info;
    size_t size;
    char *train = beside(r->o.train, "vocab.bpe"), *val = beside(r->o.val, "vocab.bpe");
    if (is(train, val) || stat(train, &info) || stat(val, &info)) return;
    if (!is(read_file(train, &size), read_file(val, &size))) {
        die(EXIT_INPUT, val, "another vocabulary than %s, need --val of the same", train);
    }
}

// The shape: that of a name, with what the options say over it, or a file's, which must agree.
void settle_config(Run* r) {
    const Options* o = &r->o;
    GPTConfig found = r->source.config, c;
    int named = config_from_name(&c, o->model);
    if (named) c.context = (int)o->seq;
    else c = found;
    if (o->layers != AUTO) c.L = (int)o->layers;
    if (o->heads != AUTO) c.NH = (int)o->heads;
    if (o->channels != AUTO) c.C = (int)o->channels;
    if (o->context != AUTO) c.context = (int)o->context;
    int V = r->source.path ? found.V : r->tokenizer ? r->tokenizer->vocab_size : 50257;
    c = with_vocabulary(c, V);
    config_check(&c, "--model", EXIT_USAGE);
    if (r->source.path && memcmp(&c, &found, sizeof c)) {
        die(r->step < 0 ? EXIT_USAGE : EXIT_RESUME, r->source.path, "has %d layers, %d heads, %d "
            "channels, %d positions, need %d, %d, %d, %d as the options say", found.L, found.NH,
            found.C, found.context, c.L, c.NH, c.C, c.context);
    }
    r->config = c;
}

// Gives every `auto` its value and refuses what does not fit together.
void settle_training(Run* r) {
    Options* o = &r->o;
    int muon = r->matrices == MUON;
    long long micro = o->batch * o->seq, part = o->steps / 50 > 20 ? o->steps / 50 : 20;
    if (o->total_batch == AUTO) o->total_batch = micro;
    if (o->total_batch % micro) {
        die(EXIT_USAGE, "--total-batch", "%lld, need a multiple of --batch * --seq, %lld",
            o->total_batch, micro);
    }
    if (isnan(o->lr)) o->lr = muon ? 0.003 : 0.0006 * 768 / r->config.C;
    if (isnan(o->grad_clip)) o->grad_clip = muon ? 0 : 1;
    if (o->warmup == AUTO) o->warmup = muon ? 0 : part < o->steps ? part : o->steps;
    if (o->warmup > o->steps) die(EXIT_USAGE, "--warmup", "%lld, need <= --steps", o->warmup);
    long long fall = fall_begins(r, o->steps), momentum = o->steps / 5 < 300 ? o->steps / 5 : 300;
    Schedule s = {o->schedule, o->steps, o->warmup, fall < 0 ? 0 : o->steps - fall, o->final_lr,
                  r->step >= 0 ? r->schedule.momentum_warmup : momentum};
    r->schedule = s;
}

// A tensor that is not the model's would be a part of another one; but for the hub's masks, the
// tied head and llm.c's padding.
void check_tensor_is_known(const TensorFile* f, int i, const Record* records, int n) {
    const char* const spare[] = {".attn.bias", ".attn.masked_bias", "lm_head.weight", "padding"};
    const char* name = f->tensors[i].name;
    for (int k = 0; k < n; k++) {
        if (is(short_name(name), short_name(records[k].name))) return;
    }
    for (int k = 0; k < 4; k++) {
        size_t length = strlen(name), end = strlen(spare[k]);
        if (length >= end && is(name + length - end, spare[k])) return;
    }
    die(EXIT_INPUT, f->path, "has a tensor %s, need only those of its config.json", name);
}

void create_model(Run* r, Optimizer matrices, int B, int T) {
    size_t N = (size_t)B * (size_t)T;
    if (T > r->config.context) die(EXIT_USAGE, "--seq", "%d, need <= %d", T, r->config.context);
    r->model = gpt_create(r->config, matrices, r->o.precision, B, T);
    Scorer batch = {B, T, (int*)xmalloc(N, sizeof(int)), (int*)xmalloc(N, sizeof(int)),
                    (float*)xmalloc(N, sizeof(float)), run_batch, r, &stop_signal,
                    (int*)xmalloc((size_t)T + 1, sizeof(int))};
    r->batch = batch;
    r->records = (Record*)xmalloc(N_TENSORS * (size_t)(r->config.L + 2), sizeof(Record));
    int n = model_records(gpt_layout(r->model), r->records);
    r->buffer = (float*)xmalloc(record_buffer(r->records, n), sizeof(float));
    if (!r->source.path) {
        gpt_init_weights(r->model, (uint64_t)r->o.seed);
        return;
    }
    const char* path = r->source.path;
    GPTConfig config;
    TensorFile* f = r->source.is_folder ? tensor_file_open(xprintf("%s/model.safetensors", path))
                                        : open_llmc(path, &config);
    for (int i = 0; i < n && !r->source.is_folder; i++) r->records[i].transposed = 0;
    records_load(f, r->records, n, set_numbers, r->model, r->buffer);
    for (int i = 0; i < f->n_tensors; i++) check_tensor_is_known(f, i, r->records, n);
    tensor_file_close(f);
}

// A new run does not write into the folder of another, nor begin when its checkpoints have no room.
void open_folder(Run* r) {
    long long steps[MOST_CHECKPOINTS];
    const size_t* size = gpt_layout(r->model)->size;
    size_t floats = size[PARAMS] + size[ADAM_M] + size[ADAM_V] + size[MUON_M];
    folder_make(r->o.out);
    if (r->step >= 0) keep_cooled_checkpoints(r);
    else if (checkpoint_list(r->o.out, steps) > 0) {
        die(EXIT_RESUME, r->o.out, "holds a run of %lld steps, need --resume or another --out",
            steps[0]);
    }
    folder_need(r->o.out, 4.0 * (double)floats * (double)(r->o.keep + 1));
    options_save(&r->table, xprintf("%s/options.tsv", r->o.out));
}

// ------------------------------------------------------------------------------------------------
// Reports

const char* duration(double seconds) {
    static char text[32];
    long long s = llround(seconds);
    if (s < 3600) snprintf(text, sizeof text, "%lld min %02lld s", s / 60, s % 60);
    else snprintf(text, sizeof text, "%lld h %02lld min", s / 3600, s / 60 % 60);
    return text;
}

// FLOPs of a step: 6 a parameter and token (positions are only added), causal attention 6 L C T.
double step_flops(const Run* r) {
    const Layout* layout = gpt_layout(r->model);
    double n = (double)(count_parameters(layout) - file_size(&layout->tensor[WPE]));
    return (6 * n + 6.0 * r->config.L * r->config.C * (double)r->o.seq) * (double)r->o.total_batch;
}

// One line a group of tensors. The size of an update is the root mean square of an element's
// change: for Muon rate / sqrt(cols), as of orthonormal rows; for AdamW about the rate.
void print_group(const Run* r, Optimizer optimizer, int vectors) {
    const Layout* layout = gpt_layout(r->model);
    int muon = optimizer == MUON, decays = muon || (!vectors && r->matrices == ADAMW);
    double rate = muon ? r->o.muon_lr : r->o.lr, low = INFINITY, high = 0;
    char names[256] = "";
    size_t n = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &layout->tensor[i];
        if (t->optimizer != optimizer || tensor_is_vector(t) != vectors) continue;
        low = fmin(low, muon ? rate / sqrt(t->cols) : rate);
        high = fmax(high, muon ? rate / sqrt(t->cols) : rate);
        n += file_size(t);
        snprintf(names + strlen(names), sizeof names - strlen(names), " %s", t->name);
    }
    if (n == 0) return;
    double decay = !decays ? 0 : muon ? r->o.weight_decay : r->o.adam_weight_decay;
    printf("%-11s lr %g, decay %g, update size %.2g to %.2g, %zu parameters:%s\n",
           muon ? "muon" : "adamw", rate, decay, low, high, n, names);
}

void print_report(const Run* r) {
    const Options* o = &r->o;
    const GPTConfig* c = &r->config;
    const Layout* layout = gpt_layout(r->model);
    printf("model       %s: %d layers, %d heads, %d channels, %d positions, vocabulary %d\n",
           r->source.path ? r->source.path : o->model, c->L, c->NH, c->C, c->context, c->V);
    printf("            %zu parameters%s\n", count_parameters(layout),
           r->source.path ? "" : ", drawn at random");
    double epochs = (double)(o->steps * (o->total_batch / o->seq)) / (double)r->train.n_samples;
    printf("data        %zu tokens; %lld steps of %lld are %.2f epochs; %zu to validate\n",
           (size_t)r->train.n_tokens, o->steps, o->total_batch, epochs, (size_t)r->val.n_tokens);
    print_group(r, MUON, 0);
    print_group(r, ADAMW, 0);
    print_group(r, ADAMW, 1);
    printf("schedule    %s, warmup %lld, cooldown %g, final %g; clip %g; seed %lld; %d threads\n",
           o->schedule, o->warmup, o->cooldown, o->final_lr, o->grad_clip, o->seed,
           omp_get_max_threads());
    double muon = muon_flops(layout), share = 100 * muon / (muon + step_flops(r));
    if (muon > 0) printf("            Newton-Schulz takes %.1f %% of a step's FLOPs\n", share);
    if (share > 15) printf("warning     above 15 %%: a larger --total-batch costs less a token\n");
    printf("out         %s%s\n\n", o->out, r->step > 0 ? ", resumed" : "");
    fflush(stdout);
}

// One line that renews itself on a terminal; elsewhere a plain line now and then.
void print_progress(const Run* r, const StepStats* stats, const Evaluation* last, double rate) {
    long long every = r->o.steps / 40 > 0 ? r->o.steps / 40 : 1, left = r->o.steps - r->step;
    int live = isatty(STDOUT_FILENO);
    if (!live && r->step > 2 && r->step % every && left > 0) return;
    double loss = (double)stats->loss, seconds = (double)(left * r->o.total_batch) / rate;
    printf("%sstep %lld/%lld | loss %.4f", live ? "\r" : "", r->step, r->o.steps, loss);
    if (last->tokens > 0) printf(" | val %.4f", last->loss);
    if (rate > 0) printf(" | %.0f tok/s | %s left", rate, duration(seconds));
    printf(live ? "   " : "\n");
    fflush(stdout);
}

void end_live_line(void) {
    if (isatty(STDOUT_FILENO)) printf("\n");
}

void print_result(Run* r, const Evaluation* e) {
    printf("\nval loss    %.4f nats/token", e->loss);
    if (e->bpb >= 0) printf(", %.4f bits/byte", e->bpb);
    printf(" on %lld tokens\n", e->tokens);
    if (e->story_tokens > 0) {
        printf("floor       %.4f nats/token in stories begun in a window, model %.4f: gap %.4f\n",
               e->story_floor, e->story_loss, e->story_loss - e->story_floor);
    }
    if (r->o.eval[0]) questions_answer(&r->questions, &r->batch);
    const char *out = r->o.out, *model = step_path(r, r->step);
    printf("trained     %s; log %s/log.tsv, checkpoint %s\n", duration(r->clock), out, model);
    printf("train on    ./train_gpt --out %s --resume --steps %lld\n", out, 2 * r->o.steps);
    printf("write       ./train_gpt --model %s --generate 200\n", model);
}

// ------------------------------------------------------------------------------------------------
// Training

int due(long long step, long long every) { return every > 0 && step % every == 0; }

// The last checkpoint is the one that counts: it is tried again before the run is given up.
void save_at_end(Run* r) {
    for (int attempt = 1; r->saved_step != r->step && !save_checkpoint(r); attempt++) {
        if (attempt == 5) die(EXIT_RESOURCES, r->o.out, "no room for the last checkpoint, need it");
        sleep(1);
    }
}

// Everything that happens between two updates. Saving comes first: nothing after it can lose it.
void between_steps(Run* r, Evaluation* last) {
    int end = r->step == r->o.steps, fall = r->step == fall_begins(r, r->o.steps);
    int save = save_signal || fall || (r->step > 0 && due(r->step, r->o.save_every));
    save_signal = 0;
    if (end) save_at_end(r);
    else if (save && r->saved_step != r->step) save_checkpoint(r);
    if (end || due(r->step, r->o.val_every)) {
        Evaluation e = evaluate(&r->batch, &r->val, r->o.val_tokens, r->floor, r->tokenizer);
        LogRow row = {r->step, r->step * r->o.total_batch, "val", e.loss, e.bpb, 0, 0, 0, r->clock};
        if (e.tokens > 0) *last = e, log_write(r->log, &row);
    }
    if (r->o.sample_every > 0 && (end || due(r->step, r->o.sample_every)) && !stop_signal) {
        end_live_line();
        printf("--- step %lld writes: ", r->step);
        generate(r, (size_t)r->o.sample_tokens, (int)r->o.seq, 1, (uint64_t)(r->o.seed + r->step));
        printf("---\n");
    }
}

// Forward and backward of one step's samples: sample i of step k is the same for every micro batch.
// Returns the bytes of text its targets stand for, or -1 when a signal came.
long long accumulate_gradients(Run* r) {
    long long B = r->o.batch, samples = r->o.total_batch / r->o.seq, bytes = 0;
    gpt_zero_grad(r->model);
    for (long long first = 0; first < samples; first += B) {
        if (stop_signal) return -1;
        for (int b = 0; b < B; b++) {
            load_sample(&r->batch, &r->train, (uint64_t)(r->step * samples + first + b), b);
        }
        bytes += bytes_of(r->tokenizer, r->batch.targets, (size_t)(B * r->o.seq));
        gpt_forward(r->model, r->batch.inputs, r->batch.targets);
        gpt_backward(r->model, (float)B / (float)samples);
    }
    return bytes;
}

Update make_update(const Run* r) {
    double rate = schedule_rate(&r->schedule, r->step);
    Update u = {r->step, (float)(rate * r->o.lr), (float)(rate * r->o.muon_lr),
                (float)schedule_momentum(&r->schedule, r->step), (float)r->o.weight_decay,
                r->matrices == ADAMW ? (float)r->o.adam_weight_decay : 0, (float)r->o.grad_clip};
    return u;
}

// A step that is not finite is passed over: no update, and the next step has other samples. Three
// in a row end the run; its weights, from before the first of them, are saved.
void refuse_step(Run* r, const StepStats* stats, int in_a_row) {
    int bad = stats->bad_tensor;
    const char* what = bad < 0 ? "loss" : gpt_layout(r->model)->tensor[bad].name;
    const char* of = bad < 0 ? "the " : "the gradient of ";
    end_live_line();
    fprintf(stderr, "warning: step %lld: %s%s is not finite, no update\n", r->step + 1, of, what);
    if (in_a_row < 3) return;
    save_at_end(r);
    die(EXIT_NUMERIC, r->o.out, "%s%s was not finite in three steps up to %lld, need a new run by "
        "lower rates (the weights from before are saved)", of, what, r->step + 1);
}

// Returns 1 when all steps are made, 0 when a signal or the time ended the run before.
int train(Run* r, Evaluation* last) {
    int refused = 0;
    long long first = r->step;
    double start = r->clock, settled = 0;  // and after the first step, which is slower
    while (between_steps(r, last), r->step < r->o.steps) {
        int late = r->o.minutes > 0 && r->clock - start >= 60 * r->o.minutes;
        double begin = now_seconds();
        long long bytes = late ? -1 : accumulate_gradients(r);
        if (bytes < 0) {
            end_live_line();
            save_at_end(r);
            printf("saved at step %lld, go on: ./train_gpt --out %s --resume\n", r->step, r->o.out);
            return 0;
        }
        Update u = make_update(r);
        StepStats stats = gpt_update(r->model, &u);
        r->clock += now_seconds() - begin;
        if (!stats.finite) {
            refuse_step(r, &stats, ++refused);
            r->step++;
            continue;
        }
        refused = 0;
        long long timed = r->step++ - first, tokens = r->o.total_batch;
        double bpb = bits_per_byte((double)stats.loss * (double)tokens, bytes);
        LogRow row = {r->step, r->step * tokens, "train", (double)stats.loss, bpb, stats.grad_norm,
                      (double)u.lr, (double)u.muon_lr, r->clock};
        log_write(r->log, &row);
        if (timed == 0) settled = r->clock;
        double rate = timed > 0 ? (double)(timed * tokens) / (r->clock - settled) : 0;
        print_progress(r, &stats, last, rate);
        if (timed == 9) {
            end_live_line();
            printf("all steps take about %s\n", duration((double)(r->o.steps * tokens) / rate));
        }
    }
    return 1;
}

// ------------------------------------------------------------------------------------------------
// main: generate, answer questions, or train

#ifndef TESTING

// A model by itself: --generate, or --eval with --steps 0.
void use_model(Run* r) {
    int T = r->config.context;
    if (r->o.generate > 0) {
        create_model(r, FROZEN, 1, T);
        generate(r, (size_t)r->o.generate, T, 0, (uint64_t)r->o.seed);
        if (ferror(stdout)) die(EXIT_RESOURCES, "stdout", "not written, need room or a reader");
        return;
    }
    Questions q = questions_open(r->o.eval, r->config.V);
    if (q.longest <= (size_t)T) T = (int)q.longest - 1;
    create_model(r, FROZEN, 4, T);
    questions_answer(&q, &r->batch);
}

void train_model(Run* r) {
    dataset_open(&r->train, r->o.train, (int)r->o.seq, r->config.V, (uint64_t)r->o.seed);
    dataset_open(&r->val, r->o.val, (int)r->o.seq, r->config.V, DATASET_IN_ORDER);
    r->floor = floor_read(beside(r->o.val, "floor.tsv"), r->val.n_tokens);
    check_val_vocabulary(r);
    if (r->o.eval[0]) r->questions = questions_open(r->o.eval, r->config.V);
    settle_training(r);
    make_fingerprint(r);
    create_model(r, r->matrices, (int)r->o.batch, (int)r->o.seq);
    if (r->step >= 0) load_optimizer(r);
    open_folder(r);
    r->step = r->step < 0 ? 0 : r->step;
    r->log = log_open(r->o.out, r->step, &r->clock);
    print_report(r);
    Evaluation last = {0, 0, 0, 0, 0, 0};
    double begin = now_seconds();
    gpt_profile(r->o.profile);
    if (train(r, &last) && !stop_signal) print_result(r, &last);
    if (r->o.profile) gpt_print_profile(now_seconds() - begin);
}

int main(int argc, char** argv) {
    // Threads that wait asleep: spinning ones make a step many times slower when another program
    // takes a core. The OpenMP library reads this only when the program starts.
    char self[PATH_MAX] = "";
    if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0 &&
        readlink("/proc/self/exe", self, sizeof self - 1) > 0) execv(self, argv);
    Run* r = (Run*)xmalloc(1, sizeof(Run));
    Options* o = &r->o;
    OptionTable table = {option_rows, (int)(sizeof option_rows / sizeof *option_rows), o, {0}};
    r->table = table;
    if (options_parse(&r->table, argc, argv) > 0) die(EXIT_USAGE, argv[0], "no option, see --help");
    if (o->help) {
        printf("train_gpt: trains a GPT and writes text with it\n\n");
        options_print_help(&r->table);
        return 0;
    }
    if (!o->out[0]) die(EXIT_USAGE, "--out", "found '', need a folder");
    if (o->resume) options_restore(&r->table, xprintf("%s/options.tsv", o->out));
    if (o->threads != AUTO) omp_set_num_threads((int)o->threads);
    catch_signals();
    r->matrices = is(o->optimizer, "muon") ? MUON : ADAMW;
    r->step = r->saved_step = -1;
    if (o->resume) find_checkpoint(r);
    r->source = find_source(r->step < 0 ? o->model : step_path(r, r->step));
    load_vocabulary(r);
    if (o->prompt[0] && !r->tokenizer) die(EXIT_USAGE, "--prompt", "no vocabulary, need --bpe");
    settle_config(r);
    if (o->generate > 0 || (o->eval[0] && o->steps == 0)) use_model(r);
    else train_model(r);
    return stop_signal ? 128 + stop_signal : 0;
}
#endif
