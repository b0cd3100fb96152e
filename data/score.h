// score.h: what a model is good for, whichever device it lives on: its loss on validation tokens,
// and the text that it writes.
//
// A model is two functions here: of a batch of tokens and their targets to the targets' losses (a
// Scorer, see eval.h), and of a token at its place to the logits of the next (a Writer).
#ifndef SCORE_H
#define SCORE_H
#include "eval.h"
#include "tokenizer.h"

// -------------------------------------------------------------------------------------------------
// Evaluation: mean loss over the first validation tokens, beside the floor where it is known

typedef struct {
    double loss, bpb;                // nats a token; bits a byte, -1: unknown
    double story_loss, story_floor;  // over the tokens of stories that begin inside their window
    long long tokens, story_tokens;  // 0 tokens: not evaluated
} Evaluation;

// Bytes of text that tokens stand for: none without a vocabulary (t NULL), none for <|endoftext|>.
static inline long long bytes_of(const Tokenizer* t, const int* tokens, size_t n) {
    long long bytes = 0;
    int length;
    for (size_t i = 0; t && i < n; i++) {
        tokenizer_bytes(t, tokens[i], &length);
        bytes += length;
    }
    return bytes;
}

static inline double bits_per_byte(double nats, long long bytes) {
    return bytes > 0 ? nats / 0.69314718055994531 / (double)bytes : -1;
}

// Row b of the batch becomes a sample: T inputs and, one place further, their T targets.
static inline void load_sample(Scorer* s, Dataset* data, uint64_t index, int b) {
    size_t T = (size_t)s->T, row = (size_t)b * T;
    dataset_sample(data, index, s->sample);
    memcpy(s->inputs + row, s->sample, sizeof(int) * T);
    memcpy(s->targets + row, s->sample + 1, sizeof(int) * T);
}

// Adds row b, which is a sample of val, and behind its first <|endoftext|> also the floor.
static inline void add_window(Evaluation* e, const Scorer* s, int b, const Dataset* val,
                              uint64_t sample, const float* floor) {
    size_t T = (size_t)s->T;
    const Shard* shard = &val->shards[val->n_shards - 1];
    while (shard->first_sample > sample) shard--;
    uint64_t target = (sample - shard->first_sample) * T + 1;
    while (shard-- > val->shards) target += shard->n_tokens;
    int in_story = 0;
    for (size_t t = (size_t)b * T; t < (size_t)(b + 1) * T; t++, target++) {
        in_story |= s->inputs[t] == val->V - 1;
        e->loss += s->losses[t];
        e->tokens++;
        if (!in_story || !floor) continue;
        e->story_loss += s->losses[t];
        e->story_floor += floor[target];
        e->story_tokens++;
    }
}

static inline Evaluation evaluate(Scorer* s, Dataset* val, long long n_tokens, const float* floor,
                                  const Tokenizer* tokenizer) {
    Evaluation e = {0, -1, 0, 0, 0, 0}, cut_short = e;
    uint64_t n = (uint64_t)n_tokens / (uint64_t)s->T, B = (uint64_t)s->B;
    long long bytes = 0;
    n = n < 1 ? 1 : n > val->n_samples ? val->n_samples : n;
    for (uint64_t first = 0; first < n; first += B) {
        if (*s->stop) return cut_short;
        uint64_t rows = n - first < B ? n - first : B;  // a last batch is filled up, not counted
        for (uint64_t b = 0; b < B; b++) load_sample(s, val, first + (b < rows ? b : 0), (int)b);
        s->run(s->owner);
        bytes += bytes_of(tokenizer, s->targets, rows * (size_t)s->T);
        for (uint64_t b = 0; b < rows; b++) add_window(&e, s, (int)b, val, first + b, floor);
    }
    e.bpb = bits_per_byte(e.loss, bytes);
    e.loss /= (double)e.tokens;
    e.story_loss /= (double)(e.story_tokens + !e.story_tokens);
    e.story_floor /= (double)(e.story_tokens + !e.story_tokens);
    return e;
}

// -------------------------------------------------------------------------------------------------
// Writing

typedef struct {
    void (*decode)(void* owner, int token, int position, float* logits);
    void* owner;
    const Tokenizer* tokenizer;         // NULL: tokens print as their ids
    int V, context;                     // the last id of V is <|endoftext|>
    double temperature;
    int top_k;
    const volatile sig_atomic_t* stop;  // a signal came: no more
} Writer;

// A token's bytes; on a terminal no control character but a new line or a tab.
static inline void write_token(const Writer* w, int token) {
    int length = 0;
    const char* bytes = w->tokenizer ? tokenizer_bytes(w->tokenizer, token, &length) : NULL;
    if (!bytes) printf("%d ", token);
    else if (token == w->V - 1) printf("\n\n");
    for (int i = 0; i < length; i++) {
        int c = (unsigned char)bytes[i], control = (c < 32 || c == 127) && c != '\n' && c != '\t';
        putchar(control && isatty(STDOUT_FILENO) ? '?' : c);
    }
    fflush(stdout);
}

// Prints the prompt (it needs a vocabulary) and n tokens after it, or up to <|endoftext|>. When the
// context is full, its last half is read again from the front. The draws depend on the seed and the
// place alone.
static inline void write_text(const Writer* w, const char* prompt, size_t n, int stop_at_end,
                              uint64_t seed) {
    size_t length = strlen(prompt), size = 1, next = 0, context = (size_t)w->context;
    int position = 0, again = 0;
    uint16_t* ids = (uint16_t*)xmalloc(length + 1, sizeof(uint16_t));
    if (length > 0) size += tokenizer_encode(w->tokenizer, prompt, length, ids);
    int* tokens = (int*)xmalloc(size + n, sizeof(int));
    float* logits = (float*)xmalloc(2 * (size_t)w->V, sizeof(float));
    tokens[0] = w->V - 1;  // as every text of the training data begins
    for (size_t i = 1; i < size; i++) tokens[i] = ids[i - 1];
    printf("%s", prompt);
    for (size_t i = 0; i < n && !*w->stop && !ferror(stdout); i++) {
        if (position == w->context || size - next > context) {
            next = size - (context + 1) / 2;
            position = 0;
            again++;
        }
        while (next < size) w->decode(w->owner, tokens[next++], position++, logits);
        double u = (double)(splitmix64(seed ^ splitmix64(i)) >> 11) / 9007199254740992.0;  // 2^53
        int token = sample_token(logits, logits + w->V, w->V, w->temperature, w->top_k, u);
        if (token == w->V - 1 && stop_at_end) break;
        write_token(w, token);
        tokens[size++] = token;
    }
    printf("\n");
    if (again > 0) {
        fflush(stdout);
        fprintf(stderr, "(the context of %zu tokens was full %d times, its last half stayed)\n",
                context, again);
    }
    free(ids);
    free(tokens);
    free(logits);
}

#endif
