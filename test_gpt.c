// test_gpt.c: the tests of the model, against a second model and against what is known without one.
//
//   cc -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math test_gpt.c -o test_gpt -lm
//
// One line a check: subject, what, error (the worst of many cases), bound, ok or FAIL; at the end
// `N passed, N failed`, which the exit status repeats. From top to bottom:
//   Checks · A second model in double · Both models side by side · What holds for any model ·
//   the CPU's ops: layers, flash attention, optimizers · main
// All above the CPU's ops goes through the seam alone: whatever stands behind it takes these tests.

#define TESTING
#include "train_gpt.c"

// ------------------------------------------------------------------------------------------------
// Checks, memory, random numbers

static FILE* report;  // stdout as it was: what the trainer prints goes nowhere
static int n_passed, n_failed;
static double worst;  // error noted since the last check

static void raise_to(double* most, double error) {  // NaN is taken, and stays
    if (!(error <= *most) && !isnan(*most)) *most = error;
}

static void note(double error) { raise_to(&worst, error); }  // or 1 for what must not be

static void check(const char* subject, const char* what, double bound) {
    int ok = worst <= bound;  // NaN fails
    n_passed += ok, n_failed += !ok;
    fprintf(report, "%-24s %-52s %8.2g <= %-8.2g %s\n", subject, what, worst, bound,
            ok ? "ok" : "FAIL");
    worst = 0;
}

// Memory on loan, zeroed, until the end of the test or of one of its many cases.
static void* loans[4096];
static int n_loans;

static void* borrow(size_t count, size_t size) {
    if (n_loans == 4096) die(EXIT_RESOURCES, "test_gpt", "4096 loans, needs a give_back first");
    return loans[n_loans++] = xmalloc(count, size);
}

static void give_back(void) {
    while (n_loans > 0) free(loans[--n_loans]);
}

static float* floats(size_t n) { return (float*)borrow(n, sizeof(float)); }
static double* doubles(size_t n) { return (double*)borrow(n, sizeof(double)); }

static double* widen(const float* x, size_t n) {
    double* out = doubles(n);
    for (size_t i = 0; i < n; i++) out[i] = x[i];
    return out;
}

static uint64_t draws;  // each takes its own stream of random numbers; set back to draw the same

static float* draw_normal(float* x, size_t n, double mean, double std) {
    float four[4];
    for (size_t i = 0; i < n; i++) {
        philox_normal4(four, 1, i, draws);
        x[i] = (float)(mean + std * four[0]);
    }
    draws++;
    return x;
}

static int* draw_tokens(int n, int V) {
    int* tokens = (int*)borrow((size_t)n, sizeof(int));
    for (int i = 0; i < n; i++) tokens[i] = (int)(splitmix64(draws << 32 | i) % V);
    draws++;
    return tokens;
}

static double dot(const double* a, const double* b, size_t n) {
    double sum = 0;
    #pragma omp simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static void add_scaled(double* out, double scale, const double* x, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] += scale * x[i];
}

// |x - ref| / |ref|
static double relative_error(const float* x, const double* ref, size_t n) {
    double error = 0;
    for (size_t i = 0; i < n; i++) error += pow(x[i] - ref[i], 2);
    return sqrt(error / dot(ref, ref, n));
}

// ------------------------------------------------------------------------------------------------
// A second model: GPT-2 as a list of ops in plain loops in double. An op runs forward, or backward:
// then it adds to the gradients of all that it was computed from. Attention keeps the whole of P.

typedef struct {
    double *x, *dx;  // values and their gradients
} Value;

typedef struct Op {
    void (*run)(const struct Op* op, int backward);
    size_t N, C, OC;                // rows; columns of in and of out
    Value in, out, w, b, residual;  // w, b: parameters
    size_t T, NH;
    double *p, *lse;                // of attention: P (B,NH,T,T), lse (B,NH,T)
    const int* tokens;              // (N), of the embedding and the loss
} Op;

// out (N,OC) = residual + b + in (N,C) w^T, without residual or b where there is none
static void plain_linear(const Op* op, int backward) {
    for (size_t i = 0; i < op->N * op->OC; i++) {
        size_t C = op->C, x = i / op->OC * C, o = i % op->OC;
        if (!backward) {
            op->out.x[i] = dot(op->in.x + x, op->w.x + o * C, C);
            op->out.x[i] += (op->residual.x ? op->residual.x[i] : 0) + (op->b.x ? op->b.x[o] : 0);
            continue;
        }
        add_scaled(op->in.dx + x, op->out.dx[i], op->w.x + o * C, C);
        add_scaled(op->w.dx + o * C, op->out.dx[i], op->in.x + x, C);
        if (op->b.dx) op->b.dx[o] += op->out.dx[i];
        if (op->residual.dx) op->residual.dx[i] += op->out.dx[i];
    }
}

// out = xhat w + b with xhat = (in - mean) / sqrt(variance + 1e-5), row by row
static void plain_layernorm(const Op* op, int backward) {
    size_t C = op->C;
    double xhat[1024], g[1024];
    for (size_t n = 0; n < op->N; n++) {
        const double *x = op->in.x + n * C, *dout = op->out.dx + n * C;
        double mean = 0, variance = 1e-5, sum = 0;
        for (size_t c = 0; c < C; c++) mean += x[c] / C;
        for (size_t c = 0; c < C; c++) variance += pow(x[c] - mean, 2) / C;
        for (size_t c = 0; c < C; c++) {
            xhat[c] = (x[c] - mean) / sqrt(variance);
            if (!backward) op->out.x[n * C + c] = xhat[c] * op->w.x[c] + op->b.x[c];
            else op->w.dx[c] += dout[c] * xhat[c], op->b.dx[c] += dout[c];
            sum += g[c] = dout[c] * op->w.x[c];
        }
        double along = dot(g, xhat, C) / C;
        for (size_t c = 0; c < C && backward; c++) {
            op->in.dx[n * C + c] += (g[c] - sum / C - xhat[c] * along) / sqrt(variance);
        }
    }
}

// in (B,T,3C), out (B,T,C). Backward: dP = dO V^T, dS = P * (dP - sum_j P dP).
static void plain_attention(const Op* op, int backward) {
    size_t C = op->OC, T = op->T, HS = C / op->NH, row = 3 * C;
    for (size_t i = 0; i < op->N * op->NH; i++) {  // (B,NH,T): a query of a head
        size_t t = i % T, b = i / T / op->NH, head = i / T % op->NH * HS, at = b * T * row + head;
        const double *q = op->in.x + at + t * row, *k = op->in.x + at + C, *v = k + C;
        double *o = op->out.x + (b * T + t) * C + head, *d_o = op->out.dx + (b * T + t) * C + head;
        double *dq = op->in.dx + at + t * row, *dk = op->in.dx + at + C, *p = op->p + i * T;
        double scale = 1 / sqrt((double)HS), most = -INFINITY, sum = 0, D = 0;
        if (!backward) {
            for (size_t j = 0; j <= t; j++) p[j] = scale * dot(q, k + j * row, HS);
            for (size_t j = 0; j <= t; j++) most = fmax(most, p[j]);
            for (size_t j = 0; j <= t; j++) sum += p[j] = exp(p[j] - most);
            memset(o, 0, sizeof(double) * HS);
            for (size_t j = 0; j <= t; j++) add_scaled(o, p[j] /= sum, v + j * row, HS);
            op->lse[i] = most + log(sum);
            continue;
        }
        for (size_t j = 0; j <= t; j++) D += p[j] * dot(d_o, v + j * row, HS);
        for (size_t j = 0; j <= t; j++) {
            double ds = scale * p[j] * (dot(d_o, v + j * row, HS) - D);
            add_scaled(dq, ds, k + j * row, HS);
            add_scaled(dk + j * row, ds, q, HS);
            add_scaled(dk + C + j * row, p[j], d_o, HS);
        }
    }
}

// out = in / 2 (1 + tanh u), u = sqrt(2 / pi) (in + 0.044715 in^3)
static void plain_gelu(const Op* op, int backward) {
    for (size_t i = 0; i < op->N * op->C; i++) {
        double x = op->in.x[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
        double slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        if (!backward) op->out.x[i] = x * (1 + t) / 2;
        else op->in.dx[i] += op->out.dx[i] * (1 + t + x * (1 - t * t) * slope) / 2;
    }
}

// out = rows of w by token + rows of b by position
static void plain_embedding(const Op* op, int backward) {
    size_t C = op->OC;
    for (size_t i = 0; i < op->N * C; i++) {
        size_t w = op->tokens[i / C] * C + i % C, b = i / C % op->T * C + i % C;
        if (!backward) op->out.x[i] = op->w.x[w] + op->b.x[b];
        else op->w.dx[w] += op->out.dx[i], op->b.dx[b] += op->out.dx[i];
    }
}

// out (N): each token's loss; backward from their mean
static void plain_loss(const Op* op, int backward) {
    for (size_t n = 0; n < op->N; n++) {
        const double* logits = op->in.x + n * op->C;
        double sum = 0, most = logits[0], *d = op->in.dx + n * op->C;
        for (size_t v = 0; v < op->C; v++) most = fmax(most, logits[v]);
        for (size_t v = 0; v < op->C; v++) sum += exp(logits[v] - most);
        op->out.x[n] = log(sum) + (most - logits[op->tokens[n]]);
        for (size_t v = 0; v < op->C && backward; v++) d[v] += exp(logits[v] - most) / sum / op->N;
        if (backward) d[op->tokens[n]] -= 1.0 / op->N;
    }
}

// Both models, with the same weights.
typedef struct {
    GPT* gpt;
    GPTConfig config;
    int B, T, *inputs, *targets;
    double *w, *g;  // the second model's weights and gradients, at the layout's offsets
    Op ops[32];
    int n_ops;
} Twins;

static Value parameter(const Twins* m, int tensor, int l) {
    const Tensor* t = &gpt_layout(m->gpt)->tensor[tensor];
    size_t at = t->offset[PARAMS] + l * copy_size(t);
    Value v = {m->w + at, m->g + at};
    return v;
}

// The next op, on in (N,C), to OC columns; w and b, where it has them, are tensor and the next one.
static Value push(Twins* m, void (*run)(const Op*, int), Value in, size_t C, size_t OC, int tensor,
                  int l, Value residual) {
    Op* op = &m->ops[m->n_ops++];
    op->run = run, op->in = in, op->N = (size_t)m->B * m->T, op->C = C, op->OC = OC, op->T = m->T;
    op->out.x = doubles(op->N * OC), op->out.dx = doubles(op->N * OC), op->residual = residual;
    op->NH = m->config.NH, op->tokens = run == plain_loss ? m->targets : m->inputs;
    op->p = doubles(op->N * op->NH * op->T), op->lse = doubles(op->N * op->NH);
    if (tensor >= 0) op->w = parameter(m, tensor, l), op->b = parameter(m, tensor + 1, l);
    return op->out;
}

static void list_ops(Twins* m) {
    size_t C = m->config.C, V = m->config.V;
    Value none = {NULL, NULL}, h, x = push(m, plain_embedding, none, 0, C, WTE, 0, none);
    for (int l = 0; l < m->config.L; l++) {
        h = push(m, plain_layernorm, x, C, C, LN1W, l, none);
        h = push(m, plain_linear, h, C, 3 * C, QKVW, l, none);
        h = push(m, plain_attention, h, 3 * C, C, -1, l, none);
        x = push(m, plain_linear, h, C, C, ATTPROJW, l, x);
        h = push(m, plain_layernorm, x, C, C, LN2W, l, none);
        h = push(m, plain_linear, h, C, 4 * C, FCW, l, none);
        h = push(m, plain_gelu, h, 4 * C, 4 * C, -1, l, none);
        x = push(m, plain_linear, h, 4 * C, C, FCPROJW, l, x);
    }
    h = push(m, plain_layernorm, x, C, C, LNFW, 0, none);
    h = push(m, plain_linear, h, C, V, WTE, 0, none);
    m->ops[m->n_ops - 1].b = none;
    push(m, plain_loss, h, V, 1, -1, 0, none);
}

// Returns the mean loss; the logits are the last op's input, each token's loss its output.
static double plain_forward(const Twins* m) {
    const Op* last = &m->ops[m->n_ops - 1];
    double sum = 0;
    for (const Op* op = m->ops; op <= last; op++) op->run(op, 0);
    for (size_t n = 0; n < last->N; n++) sum += last->out.x[n];
    return sum / last->N;
}

static void plain_backward(const Twins* m) {
    for (int i = m->n_ops - 1; i >= 0; i--) m->ops[i].run(&m->ops[i], 1);
}

// ------------------------------------------------------------------------------------------------
// Both models side by side

static GPTConfig shape(int L, int NH, int HS, int V, int context) {
    GPTConfig config = {context, V, (V + 127) / 128 * 128, L, NH, NH * HS};
    return config;
}

static size_t tensor_size(const GPT* gpt, int i) { return file_size(&gpt_layout(gpt)->tensor[i]); }

static float* get_tensor(GPT* gpt, Arena arena, int tensor) {
    float* x = floats(tensor_size(gpt, tensor));
    gpt_get(gpt, arena, tensor, 0, tensor_size(gpt, tensor), x);
    return x;
}

// Sets weights or gradients to normal numbers, of std 1 / sqrt(cols) for matrices, 0.2 for vectors;
// but positions have a mean, which LayerNorm must take out, and fcb reaches GELU's tails.
static void draw_arena(GPT* gpt, Arena arena) {
    for (int i = 0; i < N_TENSORS; i++) {
        const Tensor* t = &gpt_layout(gpt)->tensor[i];
        double std = i == FCB ? 3 : t->std > 0 ? 1 / sqrt(t->cols) : 0.2;
        float* x = draw_normal(floats(file_size(t)), file_size(t), i == WPE ? 2 : t->mean, std);
        gpt_set(gpt, arena, i, 0, file_size(t), x);
    }
}

static Twins twins_create(GPTConfig config, int B, int T) {
    Twins m;
    memset(&m, 0, sizeof m);
    m.gpt = gpt_create(config, MUON, "fp32", B, T), m.config = config, m.B = B, m.T = T;
    m.inputs = draw_tokens(B * T, config.V), m.targets = draw_tokens(B * T, config.V);
    m.w = doubles(gpt_layout(m.gpt)->size[PARAMS]), m.g = doubles(gpt_layout(m.gpt)->size[PARAMS]);
    draw_arena(m.gpt, PARAMS);
    for (int i = 0; i < N_TENSORS; i++) {
        size_t n = tensor_size(m.gpt, i);
        add_scaled(parameter(&m, i, 0).x, 1, widen(get_tensor(m.gpt, PARAMS, i), n), n);
    }
    list_ops(&m);
    return m;
}

// The relative error of a tensor's gradient but for K's bias, which moves all scores of a query
// alike: its gradient is 0, and what is there is rounding.
static double gradient_error(GPT* gpt, int tensor, const double* ref) {
    size_t n = tensor_size(gpt, tensor), C = (size_t)gpt_layout(gpt)->tensor[WTE].cols;
    float* x = get_tensor(gpt, GRADS, tensor);
    for (size_t e = 0; e < n; e++) x[e] = tensor == QKVB && e / C % 3 == 1 ? (float)ref[e] : x[e];
    return relative_error(x, ref, n);
}

// The second model's gradients against central differences, at some 40 elements of each tensor.
static void test_second_model(void) {
    const double h = 1e-5;
    Twins m = twins_create(shape(2, 2, 16, 11, 6), 2, 5);
    plain_forward(&m);
    plain_backward(&m);
    for (int i = 0; i < N_TENSORS; i++) {
        double error = 0, size = 0, *w = parameter(&m, i, 0).x, *g = parameter(&m, i, 0).dx;
        for (size_t e = 0; e < tensor_size(m.gpt, i); e += tensor_size(m.gpt, i) / 40 + 1) {
            double before = w[e], slope = 0;
            if (i == QKVB && e / 32 % 3 == 1) continue;  // K's
            for (int sign = -1; sign <= 1; sign += 2) {
                w[e] = before + sign * h;
                slope += sign * plain_forward(&m) / (2 * h);
            }
            w[e] = before;
            error += pow(g[e] - slope, 2), size += pow(slope, 2);
        }
        note(sqrt(error / size));
    }
    check("second model", "gradients against central differences", 1e-6);
    gpt_free(m.gpt);
}

// T odd, below, on and above attention's tiles; more rows than the classifier takes at a time; head
// sizes that fill registers and that do not. A second backward adds half of the first one's again.
static void test_model(void) {
    const int shapes[][6] = {  // L NH HS V B T
        {2, 2, 16, 61, 2, 7}, {2, 2, 24, 130, 3, 193}, {1, 2, 64, 31, 1, 97}, {1, 1, 128, 9, 2, 5}};
    double error[N_TENSORS] = {0}, logit_error = 0, key_bias = 0;
    for (int s = 0; s < 4; s++) {
        int V = shapes[s][3], B = shapes[s][4], T = shapes[s][5], C = shapes[s][1] * shapes[s][2];
        Twins m = twins_create(shape(shapes[s][0], shapes[s][1], shapes[s][2], V, T + 2), B, T);
        const Op* last = &m.ops[m.n_ops - 1];
        float *losses = floats(B * T), *logits = floats(V);
        double loss = plain_forward(&m);
        plain_backward(&m);
        add_scaled(m.g, 0.5, m.g, gpt_layout(m.gpt)->size[GRADS]);
        for (float scale = 1; scale >= 0.5f; scale /= 2) {
            gpt_forward(m.gpt, m.inputs, m.targets);
            gpt_backward(m.gpt, scale);
        }
        for (int i = 0; i < N_TENSORS; i++) {
            raise_to(&error[i], gradient_error(m.gpt, i, parameter(&m, i, 0).dx));
        }
        const double* bias = widen(get_tensor(m.gpt, GRADS, QKVB), 2 * C);
        raise_to(&key_bias, sqrt(dot(bias + C, bias + C, C) / dot(bias, bias, C)));
        gpt_losses(m.gpt, losses);
        note(fabs(gpt_loss(m.gpt) / loss - 1) + relative_error(losses, last->out.x, B * T));
        for (int i = 0; i < B * T * V; i++) {
            if (i % V == 0) gpt_decode(m.gpt, m.inputs[i / V], i / V % T, logits);
            raise_to(&logit_error, fabs(logits[i % V] - last->in.x[i]));
        }
        gpt_free(m.gpt);
    }
    check("model", "loss, and loss of each token", 1e-6);
    note(logit_error);
    check("model", "gpt_decode's logits", 1e-5);
    Layout layout = layout_of(shape(1, 1, 16, 2, 1), MUON);
    for (int i = 0; i < N_TENSORS; i++) {
        note(error[i]);
        check("gradient of", layout.tensor[i].name, 1e-5);
    }
    note(key_bias);
    check("gradient of", "K's bias, by the size of Q's", 1e-6);
}

// ------------------------------------------------------------------------------------------------
// What holds for any model

// A checksum of all bits of the weights and moments, and of the gradients too if asked for.
static uint32_t bits_of(GPT* gpt, int with_gradients) {
    uint32_t crc = 0;
    for (int i = 0; i < N_TENSORS * (int)N_ARENAS; i++) {
        int tensor = i % N_TENSORS, arena = i / N_TENSORS;
        int muon = gpt_layout(gpt)->tensor[tensor].optimizer == MUON;
        if (arena == GRADS ? !with_gradients : arena > GRADS && muon != (arena == MUON_M)) continue;
        crc = crc32c(crc, get_tensor(gpt, (Arena)arena, tensor), 4 * tensor_size(gpt, tensor));
    }
    return crc;
}

enum { SMALL_T = 21, SMALL_N = 8 * SMALL_T };

// A model after some updates by the same 8 sequences, B at a time; stats are the last update's.
static GPT* train_small(Optimizer matrices, int B, int updates, StepStats* stats) {
    GPT* gpt = gpt_create(shape(2, 4, 32, 61, SMALL_T), matrices, "fp32", B, SMALL_T);
    draws = 7;
    int *inputs = draw_tokens(SMALL_N, 61), *targets = draw_tokens(SMALL_N, 61);
    for (int b = 0; b < 8; b++) inputs[b * SMALL_T] = b;  // so that every target can be learnt
    gpt_init_weights(gpt, 1);
    for (int step = 0; step < updates; step++) {
        Update u = {step, 0.003f, 0.02f, 0.95f, 0, 0, 0};
        gpt_zero_grad(gpt);
        for (int first = 0; first < SMALL_N; first += B * SMALL_T) {
            gpt_forward(gpt, inputs + first, targets + first);
            gpt_backward(gpt, (float)B / 8);
        }
        *stats = gpt_update(gpt, &u);
    }
    return gpt;
}

// Whether it learns by heart; and that neither threads nor micro batches change what it does.
static void test_training(void) {
    StepStats stats, whole_stats;
    float losses[SMALL_N];
    for (int matrices = ADAMW; matrices <= MUON; matrices++) {
        gpt_free(train_small((Optimizer)matrices, 8, 100, &stats));
        note(stats.loss);
        check(matrices == MUON ? "muon" : "adamw", "loss of one batch after 100 updates", 0.01);
    }
    for (uint32_t threads = 1, bits, one = 0; threads <= 4; threads++) {
        omp_set_num_threads((int)threads);
        GPT* gpt = train_small(MUON, 8, 3, &stats);
        gpt_losses(gpt, losses);
        bits = crc32c(crc32c(bits_of(gpt, 1), losses, sizeof losses), &stats.grad_norm, 8);
        if (threads == 1) one = bits;
        note(bits != one);
        gpt_free(gpt);
    }
    omp_set_num_threads(1);
    check("model", "differing bits after 3 updates by 1, 2, 3, 4 threads", 0);
    GPT* whole = train_small(ADAMW, 8, 1, &whole_stats);
    for (int B = 4; B >= 1; B -= 3) {
        GPT* gpt = train_small(ADAMW, B, 1, &stats);
        note(fabs(stats.loss / whole_stats.loss - 1));
        for (int i = 0; i < N_TENSORS; i++) {
            note(gradient_error(gpt, i, widen(get_tensor(whole, GRADS, i), tensor_size(gpt, i))));
        }
        gpt_free(gpt);
    }
    check("model", "gradients of 8 sequences as 1 x 8, 2 x 4, 8 x 1", 1e-6);
    gpt_free(whole);
}

// What the optimizers are given: nothing, gradients to clip, bad numbers.
static void test_update(void) {
    const float bad[] = {NAN, INFINITY, -INFINITY, 1e19f, -3e38f};
    const Update u = {0, 1 / 256.0f, 1 / 64.0f, 0.9f, 1 / 8.0f, 1 / 4.0f, 2};
    GPT* gpt = gpt_create(shape(1, 2, 16, 128, 8), MUON, "fp32", 1, 8);
    const Tensor* t = gpt_layout(gpt)->tensor;
    float* w[N_TENSORS];
    double *g[N_TENSORS], squares = 0;
    draw_arena(gpt, PARAMS);
    for (int i = 0; i < N_TENSORS; i++) w[i] = get_tensor(gpt, PARAMS, i);
    gpt_update(gpt, &u);
    for (int i = 0; i < N_TENSORS; i++) {
        const float* now = get_tensor(gpt, PARAMS, i);
        float keep = t[i].optimizer == MUON ? 1 - 1 / 512.0f : i <= WPE ? 1 - 1 / 1024.0f : 1;
        for (size_t e = 0; e < file_size(&t[i]); e++) note(now[e] != keep * w[i][e]);
    }
    check("update", "without gradients: decay alone, differing bits", 0);
    draw_arena(gpt, GRADS);
    for (int i = 0; i < N_TENSORS; i++) {
        g[i] = widen(get_tensor(gpt, GRADS, i), file_size(&t[i]));
        squares += dot(g[i], g[i], file_size(&t[i]));
    }
    note(fabs(gpt_update(gpt, &u).grad_norm / sqrt(squares) - 1));
    for (int i = 0; i < N_TENSORS; i++) {  // 1 - beta is 0.1 for both optimizers
        for (size_t e = 0; e < file_size(&t[i]); e++) g[i][e] *= 0.1 * u.grad_clip / sqrt(squares);
        const float* moment = get_tensor(gpt, t[i].optimizer == MUON ? MUON_M : ADAM_M, i);
        note(relative_error(moment, g[i], file_size(&t[i])));
    }
    check("update", "norm of gradients; moments, of clipped ones", 1e-6);
    uint32_t before = bits_of(gpt, 0);
    for (int i = 5 * N_TENSORS - 1; i >= 0; i--) {  // the tensors behind i / 5 hold bad numbers too
        gpt_set(gpt, GRADS, i / 5, file_size(&t[i / 5]) - 1, 1, &bad[i % 5]);
        StepStats stats = gpt_update(gpt, &u);
        note(stats.finite || stats.bad_tensor != i / 5);
    }
    check("update", "bad number in a gradient: its tensor is named", 0);
    const int* tokens = draw_tokens(8, 128);
    gpt_forward(gpt, tokens, tokens);
    gpt_backward(gpt, NAN);
    draw_arena(gpt, GRADS);
    StepStats stats = gpt_update(gpt, &u);
    note(stats.finite || stats.bad_tensor != -1 || bits_of(gpt, 0) != before);
    check("update", "bad loss: no tensor is named; no bit has changed", 0);
    gpt_free(gpt);
}

// One gradient for qkvw at four scales, a layer each: three must move alike, the last, as small as
// floats get, by finite steps. attprojw's first copies are given the Q, K and V of layer 0.
static void test_qkv(void) {
    enum { C = 32, N = 3 * C * C };
    const double scales[] = {1, 1e-20, 1e10, 1e-43};
    const Update u = {0, 0.003f, 0.02f, 0.9f, 0, 0, 0};
    GPT* gpt = gpt_create(shape(4, 2, 16, 50, 8), MUON, "fp32", 1, 8);
    float *g = draw_normal(floats(N), N, 0, 1), *scaled = floats(N);
    gpt_set(gpt, GRADS, ATTPROJW, 0, N, g);
    for (int l = 0; l < 4; l++) {
        for (int e = 0; e < N; e++) scaled[e] = (float)(scales[l] * g[e]);
        gpt_set(gpt, GRADS, QKVW, (size_t)l * N, N, scaled);
    }
    gpt_update(gpt, &u);
    const float *w = get_tensor(gpt, PARAMS, QKVW), *proj = get_tensor(gpt, PARAMS, ATTPROJW);
    note(memcmp(w, proj, sizeof(float) * N) != 0);
    check("muon", "Q, K and V as three matrices, differing bits", 0);
    for (int l = 1; l < 3; l++) note(relative_error(w + l * N, widen(w, N), N));
    for (int e = 0; e < N; e++) note(!isfinite(w[3 * N + e]));
    check("muon", "step by gradients x 1e-20, 1e10, and 1e-43: finite", 1e-5);
    gpt_free(gpt);
}

// Element e of tensor t is component e % 4 of Box-Muller's at counter {e / 4, t}: here in double.
static double plain_draw(uint64_t seed, size_t e, int tensor) {
    uint32_t x[4] = {(uint32_t)(e / 4), 0, (uint32_t)tensor, 0}, *pair = x + e % 4 / 2 * 2;
    philox(x, seed);
    double angle = 2 * M_PI * (pair[1] + 0.5) / 4294967296.0;
    return sqrt(-2 * log((pair[0] + 0.5) / 4294967296.0)) * (e % 2 ? cos(angle) : sin(angle));
}

static void test_initial_weights(void) {
    const uint64_t seed = 0x123456789ab, ones = ~(uint64_t)0, known[] = {  // key, counter, answer
        0, 0, 0, 0xe169c58d6627e8d5, 0x9b00dbd8bc57ac4c,
        ones, ones, ones, 0x41c83b0e408f276d, 0x6d5451fda20bc7c6, 0x299f31d0a4093822,
        0x85a308d3243f6a88, 0x0370734413198a2e, 0x94fdccebd16cfe09, 0x24126ea15001e420};
    const int* tokens = draw_tokens(8, 131);
    for (const uint64_t* k = known; k < known + 15; k += 5) {
        uint32_t x[4];
        memcpy(x, k + 1, sizeof x);
        philox(x, k[0]);
        note(memcmp(x, k + 3, sizeof x) != 0);
    }
    check("initial weights", "Philox4x32-10, known answers of Random123", 0);
    const double residual = 0.02 / sqrt(6), stds[N_TENSORS] = {  // of 3 layers, by tensor
        0.02, 0.02, 0, 0, 0.02, 0, residual, 0, 0, 0, 0.02, 0, residual, 0, 0, 0};
    GPT* gpt = gpt_create(shape(3, 3, 16, 131, 50), MUON, "fp32", 1, 8);
    gpt_forward(gpt, tokens, tokens);
    note(fabs(gpt_loss(gpt) - log(131)));
    check("model", "loss of weights 0, and so logits 0, against ln V", 1e-6);
    gpt_init_weights(gpt, seed);
    for (int i = 0; i < N_TENSORS; i++) {
        const float* w = get_tensor(gpt, PARAMS, i);
        double start = i == LN1W || i == LN2W || i == LNFW;
        for (size_t e = 0; e < tensor_size(gpt, i); e++) {
            note(fabs(w[e] - (stds[i] > 0 ? stds[i] * plain_draw(seed, e, i) : start)));
        }
    }
    check("initial weights", "against the same draws in double", 1e-6);
    gpt_free(gpt);
}

static void test_schedule(void) {
    const char* shapes[] = {"wsd", "cosine", "linear", "constant"};
    const int steps[] = {0, 8, 9, 10, 50, 51, 55, 99};  // of 100, 10 to warm up, 50 to cool down
    const double rates[][8] = {
        {0.1, 0.9, 1, 1, 1, 0.982, 0.91, 0.118},
        {0.1, 0.9, 1, 1, 0.6281416799501186, 0.6126278954320293, 0.55, 0.10027412784140691},
        {0.1, 0.9, 1, 1, 0.6, 0.59, 0.55, 0.11}, {0.1, 0.9, 1, 1, 1, 1, 1, 1}};
    for (int i = 0; i < 4 * 8; i++) {
        Schedule s = {shapes[i / 8], 100, 10, 50, 0.1, 20}, bare = {shapes[i / 8], 100, 0, 0, 0, 0};
        note(fabs(schedule_rate(&s, steps[i % 8]) - rates[i / 8][i % 8]));
        note(fabs(schedule_rate(&bare, 0) - 1) + fabs(schedule_momentum(&bare, 0) - 0.95));
        note(fabs(schedule_momentum(&s, i) - fmin(0.85 + 0.10 * i / 20, 0.95)));
    }
    check("schedules", "rates of all four and Muon's momentum, edges too", 1e-12);
}

// ------------------------------------------------------------------------------------------------
// The CPU's ops: layers. An output lies between guard bands, and all begins as bytes of 0xFF, which
// are NaN: what is not written is seen as well as what is written beyond.

enum { BAND = 64 };

static float* guarded(size_t n) {
    return (float*)memset(floats(n + 2 * BAND), 0xFF, 4 * (n + 2 * BAND)) + BAND;
}

static float* guarded_normal(size_t n, double mean) { return draw_normal(guarded(n), n, mean, 1); }

// The worst error of `part` numbers at a time, so that one wrong tile cannot hide; by the size of
// them, or by a tenth of what is usual.
static double output_error(const float* x, const double* ref, size_t n, size_t part) {
    double most = 0, usual = dot(ref, ref, n) / n;
    for (int i = 1; i <= BAND; i++) note(!isnan(x[-i]) || !isnan(x[n - 1 + i]));
    for (size_t i = 0; i < n; i += part) {
        size_t m = min_size(part, n - i);
        double size = dot(ref + i, ref + i, m), least = usual * m / 100;
        raise_to(&most, relative_error(x + i, ref + i, m) * sqrt(size / fmax(size, least)));
    }
    return most;
}

static void test_exp2(void) {
    const float ends[] = {-INFINITY, -1e30f, 1e30f, INFINITY, NAN};
    float lane[LANES];
    for (int i = -5; i < 400000; i++) {
        float x = i < 0 ? ends[i + 5] : -150 + i * 0.00075f;
        double ref = x < -126 ? 0 : x > 127 ? exp2(127) : exp2(x);
        vec_store(lane, vec_exp2(vec_set(x)));
        note(isnan(x) ? !isnan(lane[0]) : ref > 0 ? fabs(lane[0] / ref - 1) : lane[0] != 0);
    }
    check("vec_exp2", "-126 .. 127; beyond, 0 and 2^127; NaN", 2.5e-7);
}

// c = add + bias + a b for odd shapes, a and b as they are and as views of their transposes.
static void test_matmul(void) {
    const int shapes[][3] = {{1, 1, 1}, {7, 5, 3}, {13, 193, 33}, {193, 257, 385}, {1, 200, 97}};
    for (int s = 0; s < 4 * 5; s++) {
        int M = shapes[s / 4][0], N = shapes[s / 4][1], K = shapes[s / 4][2];
        float *a = guarded_normal(M * K, 0.2), *b = guarded_normal(K * N, 0.3);
        float *c = guarded_normal(M * N, 0), *bias = guarded_normal(N, 0);
        double* ref = widen(c, M * N);
        View va = s & 1 ? view_transposed(a, M) : view(a, K);
        View vb = s & 2 ? view_transposed(b, K) : view(b, N);
        for (int i = 0; i < M * N; i++) {
            ref[i] += bias[i % N];
            for (int k = 0; k < K; k++) {
                ref[i] += (double)a[i / N * va.row + k * va.col] * b[k * vb.row + i % N * vb.col];
            }
        }
        matmul(c, va, vb, c, bias, M, N, K);
        note(output_error(c, ref, M * N, M * N));
    }
    check("matmul", "odd shapes, transposes, bias, accumulation", 1e-6);
}

// Logits all 0, normal, sharp, enormous, and with a mean of -1e4, none of which the loss may feel.
static void test_classifier(void) {
    enum { N = 5, V = 301, Vp = 384 };
    const double spread[N] = {0, 1, 30, 1e4, 1};
    const int targets[N] = {0, V - 1, 7, 100, 3};
    float *logits = guarded(N * Vp), *losses = guarded(N);
    double *loss = doubles(N), *ref = doubles(N * Vp);
    for (int n = 0; n < N; n++) {
        float* x = draw_normal(logits + n * Vp, V, n == 4 ? -1e4 : 0, spread[n]);
        Op op = {plain_loss, 1, V, 1, {widen(x, V), ref + n * Vp}, {loss + n, NULL}, {NULL, NULL},
                 {NULL, NULL}, {NULL, NULL}, 0, 0, NULL, NULL, &targets[n]};
        plain_loss(&op, 1);
    }
    classifier_softmax(logits, losses, targets, 1, N, V, Vp);
    for (int n = 0; n < N; n++) note(fabs(losses[n] / loss[n] - 1));
    note(output_error(logits, ref, N * Vp, Vp));
    check("softmax, loss", "logits of std 0 .. 1e4, mean -1e4; gradient, padding", 1e-6);
}

// ------------------------------------------------------------------------------------------------
// The CPU's ops: flash attention against the whole matrix P

typedef struct {
    int B, T, C, NH, n;  // n = B*T*C
    float *qkv, *dout, *out, *lse, *dqkv;
} Attention;

// Normal inputs, with scores of std spread.
static Attention attention_create(int B, int T, int NH, int HS, double spread) {
    int C = NH * HS, n = B * T * C;
    Attention a = {B, T, C, NH, n, guarded_normal(3 * n, 0), guarded_normal(n, 0), guarded(n),
                   guarded(B * NH * T), guarded(3 * n)};
    for (int i = 0; i < n; i++) a.qkv[i / C * 3 * C + i % C] *= (float)spread;
    return a;
}

static void attention_run(const Attention* a) {
    attention_forward(a->out, a->lse, a->qkv, a->B, a->T, a->C, a->NH);
    attention_backward(a->dqkv, a->dout, a->out, a->lse, a->qkv, a->B, a->T, a->C, a->NH);
}

// Raises error: of out and lse; of dQ, dK and dV, in tiles of 16 rows; and to the largest |lse|.
static void attention_compare(const Attention* a, double error[3]) {
    size_t n = a->n, T = a->T, N = a->B * T, rows = N * a->NH;
    Op op = {plain_attention, N, 3 * n / N, n / N, {widen(a->qkv, 3 * n), doubles(3 * n)},
             {doubles(n), widen(a->dout, n)}, {NULL, NULL}, {NULL, NULL}, {NULL, NULL},
             T, (size_t)a->NH, doubles(rows * T), doubles(rows), NULL};
    plain_attention(&op, 0), plain_attention(&op, 1);
    attention_run(a);
    raise_to(&error[0], output_error(a->out, op.out.x, n, 16 * a->C));
    raise_to(&error[0], output_error(a->lse, op.lse, rows, rows));
    raise_to(&error[1], output_error(a->dqkv, op.in.dx, 3 * n, 16 * 3 * a->C));
    for (size_t i = 0; i < rows; i++) raise_to(&error[2], fabs(op.lse[i]));
    give_back();
}

// Rounding a sum of size s moves its exponential by s / 2^24, and a score is rounded HS times.
static void check_attention(const char* name, const double error[3]) {
    double slack = error[2] > 20 ? 8 * error[2] / 16777216 : 0;
    note(error[0]);
    check(name, "out and logsumexp", 5e-6 + slack);
    note(error[1]);
    check(name, "dQ, dK and dV", 2e-5 + slack);
}

static void test_attention_shapes(void) {
    const int lengths[] = {1, 2, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128,
                           129, 144, 145, 190, 192, 193, 200, 255, 257, 288, 300};
    double error[3] = {0};
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        Attention a = attention_create(1 + i % 2, lengths[i / 2], 1 + i % 3, 16 + i % 15 * 8, 1);
        attention_compare(&a, error);
    }
    check_attention("attention, shapes", error);
}

enum { EQUAL = 3, EQUAL_V, ONE_HOT, ALL_LOW, ONE_HIGH, ONE_LOW, HIDDEN_HIGH, N_EXTREMES };

// Sets inputs: of all tokens, or the score of one pair of them by the first channel of a head.
static void set_extreme(const Attention* a, int kind) {
    int HS = a->C / a->NH, T = a->T, query = kind == HIDDEN_HIGH ? T / 3 : T - 1;
    float root = sqrtf((float)HS), size = sqrtf(3e4f * root);  // size^2 / root is the score
    for (int i = 0; i < T * a->NH * HS; i++) {
        int t = i / HS / a->NH, d = i % HS;
        float *q = a->qkv + t * 3 * a->C + i % a->C, *k = q + a->C, *v = k + a->C;
        if (kind == EQUAL) *q = *k = 1;
        if (kind == EQUAL_V) *v = 3;
        if (kind == ONE_HOT) *q = 30 * (d == t / 2 % HS), *k = 30 * (d == t % HS);
        if (kind == ALL_LOW && d == 0) *q = 30, *k = -200 * root / 30;
        if (kind >= ONE_HIGH && d == 0 && t == query) *q = kind == ONE_LOW ? -size : size;
        if (kind >= ONE_HIGH && d == 0 && t == (kind == HIDDEN_HIGH ? T - 1 : T / 2)) *k = size;
    }
}

static void test_attention_extremes(void) {
    const char* names[N_EXTREMES] = {
        "attention, scores / 1000", "attention, scores x 10", "attention, scores x 100",
        "attention, equal scores", "attention, equal V", "attention, one-hot",
        "attention, all -200", "attention, one 3e4", "attention, one -3e4", "attention, hidden"};
    for (int kind = 0; kind < N_EXTREMES; kind++) {
        double error[3] = {0}, spread[] = {1e-3, 10, 100, 1};
        for (int T = 1; T <= 193; T += 1 + T / 6) {
            Attention a = attention_create(1, T, 2, 24, spread[kind < 3 ? kind : 3]);
            set_extreme(&a, kind);
            attention_compare(&a, error);
        }
        check_attention(names[kind], error);
    }
}

// The first T tokens of a sequence.
static Attention cut(const Attention* a, int T) {
    Attention copy = attention_create(1, T, a->NH, a->C / a->NH, 1);
    memcpy(copy.qkv, a->qkv, sizeof(float) * 3 * copy.n);
    memcpy(copy.dout, a->dout, sizeof(float) * copy.n);
    return copy;
}

// Notes differing out, lse and dQ of the first tokens in the heads from h on.
static void note_differing(const Attention* a, const Attention* b, int tokens, int h, int with_dq) {
    for (int i = 0; i < tokens * a->C; i++) {
        int c = i % a->C, t = i / a->C, head = c / (a->C / a->NH), q = t * 3 * a->C + c;
        if (head < h) continue;
        note(a->out[i] != b->out[i] || a->lse[head * a->T + t] != b->lse[head * b->T + t]);
        note(with_dq && a->dqkv[q] != b->dqkv[q]);
    }
}

static void test_attention_bits(void) {
    enum { NH = 3, HS = 24, C = NH * HS, T = 150 };
    const int tokens[] = {0, 1, 17, 47, 48, 49, 95, 96, 97, 149};
    Attention a = attention_create(1, T, NH, HS, 1), other = cut(&a, T);
    attention_run(&a);
    for (int k = 0; k < 10; k++) {
        int j = tokens[k];
        Attention prefix = cut(&a, j + 1), changed = cut(&a, T), bad = cut(&a, T);
        for (int i = j * 3 * C; i < (j + 1) * 3 * C; i++) {
            changed.qkv[i] += 1;
            if (i >= j * 3 * C + C) bad.qkv[i] = NAN;  // K and V
        }
        attention_run(&prefix), attention_run(&changed), attention_run(&bad);
        note_differing(&a, &prefix, j + 1, 0, 1);
        note_differing(&a, &changed, j, 0, 1);
        note_differing(&a, &bad, j, 0, 0);
        for (int i = j * C; i < a.n; i++) {
            note(!isnan(bad.out[i]) || !isnan(bad.lse[i % C / HS * T + i / C]));
        }
    }
    check("attention, bits", "differing in a prefix, before a changed or bad token", 0);
    for (int i = 0; i < 3 * a.n; i++) other.qkv[i] = i % C < HS ? NAN : other.qkv[i];
    attention_run(&other);
    note_differing(&a, &other, T, 1, 1);
    memset(a.dout, 0, sizeof(float) * a.n);
    attention_run(&a);
    for (int i = 0; i < 3 * a.n; i++) note(a.dqkv[i] != 0);
    check("attention, bits", "differing beside a bad head; dO = 0: no gradient", 0);
}

// ------------------------------------------------------------------------------------------------
// The CPU's ops: optimizers

// X by its ends, sum and norm, for matrices of a linear congruential generator; a first step is -X
// times the size factor.
static void test_golden_matrices(void) {
    const struct { int rows, cols; double first, last, sum, norm; } known[] = {
        {16, 16, -.117955470602, .077744454007, 2.1276662273, 3.811088132236},
        {16, 64, -.007127797118, -.013937328527, 3.1736162249, 3.499821651679},
        {64, 16, .006822357677, .064927228344, 4.3625082722, 3.718161829160},
        {96, 32, .020581366072, .049776275517, -.5959654487, 4.604543970763}};
    const Update u = {0, 0, 1, 0.95f, 0, 0, 0};
    for (int k = 0; k < 4; k++) {
        int rows = known[k].rows, cols = known[k].cols, n = rows * cols;
        float *g = floats(n), *w = floats(n);
        double *x = doubles(n), sum = 0;
        for (uint32_t i = 0, state = 1; i < (uint32_t)n; i++) {
            state = (1103515245u * state + 12345u) & 0x7FFFFFFF;
            g[i] = (float)(state / 2147483648.0 - 0.5);
        }
        float* scratch = floats(muon_scratch(rows, cols));
        muon_update(w, floats(n), g, 1, &u, scratch, rows, cols);
        for (int i = 0; i < n; i++) sum += x[i] = -w[i] / sqrt(fmax(1, (double)rows / cols));
        note(fabs(x[0] - known[k].first) + fabs(x[n - 1] - known[k].last));
        note((fabs(sum - known[k].sum) + fabs(sqrt(dot(x, x, n)) - known[k].norm)) / 10);
    }
    check("Newton-Schulz", "golden matrices, square, wide and tall", 2e-6);
}

// A singular value s becomes f(s), five rounds of a polynomial: here those of diagonals, from 0.002
// to 1, where f lies in 0.6818 .. 1.2024.
static void test_scalar_law(void) {
    const int shapes[][2] = {{40, 40}, {40, 48}, {48, 40}, {1, 33}, {33, 1}};
    for (int k = 0; k < 5; k++) {
        int rows = shapes[k][0], cols = shapes[k][1], rank = rows > 1 && cols > 1 ? 37 : 1;
        float* x = floats(rows * cols);
        double* f = doubles(rows * cols);
        for (int i = 0; i < rank; i++) {
            double s = x[i * cols + i] = (float)pow(0.002, i / 36.0);
            for (int step = 0; step < 5; step++) s *= 3.4445 - 4.775 * s * s + 2.0315 * pow(s, 4);
            f[i * cols + i] = s;
            note(s < 0.6818 || s > 1.2024 || fabs(f[0] - 0.6964364094697522) > 1e-12);
        }
        newton_schulz(x, floats(muon_scratch(rows, cols)), rows, cols);
        for (int i = 0; i < rows * cols; i++) note(fabs(x[i] - f[i]));
    }
    check("Newton-Schulz", "singular values 0, .002 .. 1; one row, one column", 5e-6);
}

static void test_golden_updates(void) {
    const float g[][6] = {{.1f, .2f, .3f, .4f, .5f, .6f}, {-.1f, 0, .1f, .2f, -.2f, .05f},
                          {.3f, -.2f, .1f, 0, .4f, -.6f}};
    const double known[][6] = {
        {.1111658389, .1984451615, .2857244841, .3879328793, .4908877282, .5938425771},
        {.1228936615, .1902980731, .2697119599, .3736426410, .4905949198, .5864134108},
        {.1116709716, .1929549126, .2598972493, .3648024720, .4749313962, .5935889092}};
    const float g_adam[][2] = {{.1f, -.2f}, {.3f, .05f}, {-.2f, .1f}};
    const double adam[][2] = {{.4895000, -.2397500}, {.4799236, -.2347626}, {.4768779, -.2340466}};
    float w[6] = {.1f, .2f, .3f, .4f, .5f, .6f}, m[6] = {0};
    float x[2] = {0.5f, -0.25f}, x_m[2] = {0}, x_v[2] = {0}, scratch[64];
    for (int step = 0; step < 3; step++) {
        const Update u = {step, 0, 0.02f, 0.95f, 0.1f, 0, 0};
        muon_update(w, m, g[step], 1, &u, scratch, 2, 3);
        adamw_update(x, x_m, x_v, g_adam[step], 1, 0.01f, 0.1f, step, 2);
        for (int i = 0; i < 6; i++) note(fabs(w[i] - known[step][i]));
        for (int i = 0; i < 2; i++) note(fabs(x[i] - adam[step][i]));
    }
    check("muon and adamw", "golden weights of 3 updates", 1e-6);
}

// Padding stays 0, or it would take part in the loss; and no memory of the model grows with T*T.
static void test_memory(void) {
    StepStats stats;
    double bend = 0;
    GPT* gpt = train_small(MUON, 8, 3, &stats);
    const Tensor* wte = &gpt->layout.tensor[WTE];
    const float* w = tensor_at(gpt, PARAMS, WTE, 0);
    for (size_t e = file_size(wte); e < copy_size(wte); e++) note(w[e] != 0);
    check("model", "padding after 3 updates: 0", 0);
    for (int i = 0; i < 3; i++) {
        gpt->T = 1024 * (i + 1);
        bend += (i == 1 ? -2 : 1) * (double)carve_acts(gpt, NULL);
    }
    note(fabs(bend));
    check("model", "activation memory is linear in T", 0);
    gpt_free(gpt);
}

int main(void) {
    void (*const tests[])(void) = {
        test_second_model, test_model, test_training, test_update, test_qkv, test_initial_weights,
        test_schedule, test_exp2, test_matmul, test_classifier, test_attention_shapes,
        test_attention_extremes, test_attention_bits, test_golden_matrices, test_scalar_law,
        test_golden_updates, test_memory};
    report = fdopen(dup(1), "w");
    if (!report || !freopen("/dev/null", "w", stdout)) die(EXIT_RESOURCES, "stdout", "needs one");
    setvbuf(report, NULL, _IOLBF, 0);
    omp_set_num_threads(1);  // for models this small more threads only wait for each other
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) tests[i](), give_back();
    fprintf(report, "%d passed, %d failed\n", n_passed, n_failed);
    return n_failed != 0;
}
