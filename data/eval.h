// eval.h: what a run is measured by: its log, questions, the floor of a synthetic text, samples.
//
// OUT/log.tsv has a header line, then a row an event, in tab-separated columns (LOG_HEADER).
// Questions are multiple choice, in llm.c's eval format, all little-endian:
//     int32[256]   magic 20240522, version 1, examples, bytes of the longest, then zeros
//     an example, uint16: 65535, its bytes, index, label, number of endings, then the context and
//                         each ending as a count and so many tokens
// The floor is what the source of a synthetic text costs: floor.tsv beside the validation shards is
// a header line, then "token <tab> nats" for each validation token that costs something, in order.
#ifndef EVAL_H
#define EVAL_H
#include "tokens.h"
#include <math.h>
#include <signal.h>

// -------------------------------------------------------------------------------------------------
// log.tsv

#define LOG_HEADER "step\tsplit\tloss\tbpb\tgrad_norm\tlr\tmuon_lr\ttokens\tseconds\n"

typedef struct {
    long long step, tokens;
    const char* split;  // train, or val: rates and norm are then not there
    double loss, bpb, grad_norm, lr, muon_lr;  // nats a token; bits a byte, below 0: unknown
    double clock;       // seconds of training
} LogRow;

// The row is in the file when this returns: a crash loses none. That it cannot be written is said
// once; the rows of that time are lost, the training is not.
static inline void log_write(FILE* log, const LogRow* r) {
    static int warned, torn;
    if (torn) fputc('\n', log);  // part of the row before may be in the file
    fprintf(log, "%lld\t%s\t%.7f\t", r->step, r->split, r->loss);
    fprintf(log, r->bpb < 0 ? "-\t" : "%.7f\t", r->bpb);
    fprintf(log, r->split[0] == 'v' ? "-\t-\t-\t" : "%.6g\t%.6g\t%.6g\t", r->grad_norm, r->lr,
        r->muon_lr);
    fprintf(log, "%lld\t%.3f\n", r->tokens, r->clock);
    torn = fflush(log) != 0;
    if (torn && !warned++) {
        fprintf(stderr, "warning: log.tsv: not written: %s\n", strerror(errno));
    }
}

// Copies the rows that a checkpoint of `step` updates has behind it: training rows up to the step,
// validations before it (the one at the step comes after saving, and is made again). Returns the
// training clock of the last.
static inline double log_copy(const char* path, FILE* to, long long step) {
    struct stat info;
    if (stat(path, &info)) return 0;
    size_t size;
    double clock = 0;
    char *text = read_file(path, &size), *next;
    for (char* line = text; (next = strchr(line, '\n')); line = next + 1) {
        long long row;
        char split[8];
        double seconds;
        *next = 0;  // sscanf would take a short line's fields from the next one
        int n = sscanf(line, "%lld\t%7s\t%*s\t%*s\t%*s\t%*s\t%*s\t%*s\t%lf", &row, split, &seconds);
        if (n != 3 || row >= step + (split[0] == 't')) continue;
        fprintf(to, "%s\n", line);
        clock = seconds;
    }
    free(text);
    return clock;
}

// Opens the log for more rows behind those of the step; a new run's step is 0. The old log stays in
// its place until the new one is on the disk.
static inline FILE* log_open(const char* out, long long step, double* clock) {
    char *path = xprintf("%s/log.tsv", out), *temporary = xprintf("%s.tmp", path);
    FILE* file = fopen(temporary, "w");
    if (!file) die_errno(EXIT_RESOURCES, temporary, "need to write it");
    fputs(LOG_HEADER, file);
    *clock = step > 0 ? log_copy(path, file, step) : 0;
    if (fflush(file) || ferror(file) || fsync(fileno(file)) || rename(temporary, path)) {
        die_errno(EXIT_RESOURCES, path, "need to write it");
    }
    free(temporary), free(path);
    return file;
}

// -------------------------------------------------------------------------------------------------
// Questions and the floor

enum { EVAL_MAGIC = 20240522, EVAL_VERSION = 1, EVAL_START = 65535, MOST_ENDINGS = 16 };

typedef struct {
    const char* path;
    char* text;                // the whole file
    const uint16_t *at, *end;  // the next word, and behind the last
    int n_examples;
    int V;                     // every id must be smaller
    size_t longest;            // tokens of a context and its ending
} Questions;

// One example; its tokens stay in the file's text.
typedef struct {
    int label, n_endings, n_context, n_ending[MOST_ENDINGS];
    const uint16_t *context, *ending[MOST_ENDINGS];
} Question;

// The next word of the file, which must lie in [low, high].
static inline int questions_word(Questions* q, int low, int high, const char* what) {
    size_t offset = (size_t)((const char*)q->at - q->text);
    if (q->at >= q->end) die(EXIT_INPUT, q->path, "found its end at %zu, need %s", offset, what);
    if (*q->at < low || *q->at > high) {
        die(EXIT_INPUT, q->path, "found %d at byte %zu, need %s from %d to %d", *q->at, offset,
            what, low, high);
    }
    return *q->at++;
}

// A count and so many tokens: at least one, since a loss needs one before it and one to predict.
static inline const uint16_t* questions_tokens(Questions* q, int* n, const char* what) {
    *n = questions_word(q, 1, 65534, what);
    const uint16_t* tokens = q->at;
    for (int i = 0; i < *n; i++) questions_word(q, 0, q->V - 1, "a token");
    return tokens;
}

// Reads and checks the next example, which must be there.
static inline Question questions_next(Questions* q) {
    Question x;
    memset(&x, 0, sizeof x);
    const uint16_t* begin = q->at;
    questions_word(q, EVAL_START, EVAL_START, "the mark of an example");
    int bytes = questions_word(q, 0, 65535, "the size of an example");
    questions_word(q, 0, 65535, "an index");
    x.label = questions_word(q, 0, MOST_ENDINGS - 1, "a label");
    x.n_endings = questions_word(q, x.label + 1, MOST_ENDINGS, "the number of endings");
    x.context = questions_tokens(q, &x.n_context, "the length of a context");
    for (int i = 0; i < x.n_endings; i++) {
        x.ending[i] = questions_tokens(q, &x.n_ending[i], "the length of an ending");
        size_t length = (size_t)x.n_context + (size_t)x.n_ending[i];
        if (length > q->longest) q->longest = length;
    }
    if (bytes != 2 * (q->at - begin)) {
        die(EXIT_INPUT, q->path, "found an example of %d bytes that says %d, need the same",
            (int)(2 * (q->at - begin)), bytes);
    }
    return x;
}

// Reads and checks the whole file, then stands before its first example. The path must stay; the
// text is the caller's to free, or questions_answer's.
static inline Questions questions_open(const char* path, int V) {
    Questions q;
    size_t size;
    memset(&q, 0, sizeof q);
    q.path = path;
    q.V = V;
    q.text = read_file(path, &size);
    int32_t header[3] = {0, 0, 0};
    if (size >= 1024) memcpy(header, q.text, sizeof header);
    if (size % 2 || header[0] != EVAL_MAGIC || header[1] != EVAL_VERSION || header[2] < 1) {
        die(EXIT_INPUT, path, "found %zu bytes, magic %d, version %d, %d examples, need magic %d, "
            "version %d", size, header[0], header[1], header[2], EVAL_MAGIC, EVAL_VERSION);
    }
    const uint16_t* first = (const uint16_t*)(const void*)(q.text + 1024);
    q.n_examples = header[2];
    q.at = first;
    q.end = (const uint16_t*)(const void*)(q.text + size);
    for (int i = 0; i < q.n_examples; i++) questions_next(&q);
    if (q.at != q.end) die(EXIT_INPUT, path, "found bytes behind its last example, need none");
    q.at = first;
    return q;
}

// A row of the floor: a token from `least` on and below n, a tab, nats, a new line, nothing else.
// Returns what is behind it, or NULL.
static inline const char* floor_row(
    const char* row, uint64_t least, uint64_t n, uint64_t* token, float* nats) {
    char* end;
    if (!isdigit((unsigned char)*row)) return NULL;
    *token = strtoull(row, &end, 10);  // too large a number becomes 2^64 - 1
    if (*token < least || *token >= n || *end != '\t') return NULL;
    const char* number = end + 1;
    size_t length = strspn(number, "0123456789.e+-");  // what strtof takes besides is none of ours
    if (!isdigit((unsigned char)*number)) return NULL;
    *nats = strtof(number, &end);
    return end == number + length && *end == '\n' && *nats < 1e6f ? end + 1 : NULL;
}

// Nats by token (n), or NULL when there is no such file.
static inline float* floor_read(const char* path, uint64_t n) {
    const char* const header = "token\tnats\n";
    struct stat info;
    size_t size;
    if (stat(path, &info)) return NULL;
    char* text = read_file(path, &size);
    float *nats = (float*)xmalloc(n, sizeof(float)), x;
    const char *end = text + size, *row = text + strlen(header);
    if (strncmp(text, header, strlen(header)) != 0) {
        die(EXIT_INPUT, path, "found '%.16s', need the header token, tab, nats", text);
    }
    for (uint64_t token, least = 0; row < end; least = token + 1) {
        const char* next = floor_row(row, least, n, &token, &x);
        if (!next) {
            size_t length = strcspn(row, "\n");
            die(EXIT_INPUT, path, "found row '%.*s', need a token from %llu on, below %llu, a tab "
                "and nats", length < 40 ? (int)length : 40, row, (unsigned long long)least,
                (unsigned long long)n);
        }
        nats[token] = x;
        row = next;
    }
    free(text);
    return nats;
}

// -------------------------------------------------------------------------------------------------
// Answering: a model is a function from B rows of T tokens and their targets to the targets' losses

typedef struct {
    int B, T;
    int *inputs, *targets;              // (B,T)
    float* losses;                      // (B,T), in nats
    void (*run)(void* owner);           // inputs, targets -> losses
    void* owner;
    const volatile sig_atomic_t* stop;  // a signal came: no more
    int* sample;                        // (T+1), on its way into a row
} Scorer;

// Row b: context and ending, cut in front where they are too long. Returns how many targets are the
// ending's; *first is the place of the first of them.
static inline int load_ending(Scorer* s, const Question* x, int ending, int b, int* first) {
    int n = x->n_context + x->n_ending[ending], cut = n - 1 > s->T ? n - 1 - s->T : 0;
    int *inputs = s->inputs + (size_t)b * s->T, *targets = s->targets + (size_t)b * s->T;
    memset(inputs, 0, sizeof(int) * (size_t)s->T);
    memset(targets, 0, sizeof(int) * (size_t)s->T);
    for (int i = cut; i < n; i++) {
        int token = i < x->n_context ? x->context[i] : x->ending[ending][i - x->n_context];
        if (i - cut < s->T) inputs[i - cut] = token;
        if (i > cut) targets[i - cut - 1] = token;
    }
    *first = x->n_context - 1 > cut ? x->n_context - 1 - cut : 0;
    return n - 1 - cut - *first;
}

// Prints the share of right answers, and ends the use of q. The ending of least loss is the model's
// answer, by the mean over its tokens and by their sum.
static inline void questions_answer(Questions* q, Scorer* s) {
    int right = 0, right_by_mean = 0, asked = 0;
    for (; asked < q->n_examples && !*s->stop; asked++) {
        Question x = questions_next(q);
        double sum[MOST_ENDINGS] = {0}, mean[MOST_ENDINGS];
        int first[MOST_ENDINGS], n[MOST_ENDINGS], best = 0, best_mean = 0;
        for (int e = 0; e < x.n_endings; e++) {
            n[e] = load_ending(s, &x, e, e % s->B, &first[e]);
            if (e % s->B < s->B - 1 && e < x.n_endings - 1) continue;  // the batch is not full
            s->run(s->owner);
            for (int k = e - e % s->B; k <= e; k++) {
                const float* loss = s->losses + (size_t)(k % s->B) * s->T + first[k];
                for (int t = 0; t < n[k]; t++) sum[k] += loss[t];
                mean[k] = sum[k] / n[k];
                best = sum[k] < sum[best] ? k : best;
                best_mean = mean[k] < mean[best_mean] ? k : best_mean;
            }
        }
        right += best == x.label;
        right_by_mean += best_mean == x.label;
    }
    double percent = 100.0 / (asked > 0 ? asked : 1);
    printf("questions   %.2f %% right by mean loss, %.2f %% by summed loss, of %d in %s\n",
           percent * right_by_mean, percent * right, asked, q->path);
    free(q->text);
}

// -------------------------------------------------------------------------------------------------
// Sampling

static inline int by_size(const void* a, const void* b) {  // the largest first
    float x = *(const float*)a, y = *(const float*)b;
    return (x < y) - (x > y);
}

// Draws a token from softmax(logits / temperature) among the k likeliest and those that equal the
// last of them (0: all); temperature 0 takes the likeliest. u: uniform in [0,1), p (V): scratch.
static inline int sample_token(
    const float* logits, float* p, int V, double temperature, int k, double u) {
    int best = 0;
    for (int v = 1; v < V; v++) best = logits[v] > logits[best] ? v : best;
    if (temperature == 0) return best;
    memcpy(p, logits, sizeof(float) * (size_t)V);
    if (k > 0 && k < V) qsort(p, (size_t)V, sizeof(float), by_size);
    float least = k > 0 && k < V ? p[k - 1] : -INFINITY;
    double sum = 0, below = 0;
    for (int v = 0; v < V; v++) {
        // Less the largest, so that exp stays in [0,1].
        p[v] = logits[v] >= least ? (float)exp((logits[v] - logits[best]) / temperature) : 0;
        sum += p[v];
    }
    for (int v = 0; v < V; v++) {
        below += p[v];
        if (u * sum < below) return v;
    }
    return best;
}

#endif
