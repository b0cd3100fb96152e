// test_tokenizer.c: data/tokenizer.h and data/prepare.c, against slower and simpler ways.
//
//     cc -O2 dev/test/test_tokenizer.c -o build/test_tokenizer -lm
//     DATA=folder build/test_tokenizer ./prepare
//
// The oracles are written here from the rules alone: GPT-2's pattern as ordered alternatives with
// backtracking, merging that replaces one merge after the other, learning that recounts everything
// before each merge. DATA names a folder with vocab.bpe, gpt2_vectors.tsv and tinyshakespeare.txt;
// without it the comparisons with GPT-2 are skipped.
#define main prepare_main
#include "../../data/prepare.c"
#undef main
#include "check.h"
#include <sys/wait.h>

static const char* program;   // ./prepare
static const char* data_dir;  // DATA, or NULL
static char folder[64];       // for the files of this test, removed at its end

static const Separator WHOLE = {NULL, 0};  // each text is one document

// -------------------------------------------------------------------------------------------------
// Tools

// The same numbers in every run.
static uint64_t random_state = 1;

static size_t random_below(size_t n) {
    random_state = splitmix64(random_state);
    return (size_t)(random_state >> 11) % n;
}

static Text text_of(const char* bytes, size_t n) {
    Text text = {"text", bytes, n};
    return text;
}

static char* path_in_folder(const char* name) { return xprintf("%s/%s", folder, name); }

static void write_file(const char* name, const void* bytes, size_t n) {
    char* path = path_in_folder(name);
    FILE* f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        die_errno(EXIT_RESOURCES, path, "need a file to write to");
    }
    free(path);
}

static void write_string(const char* name, const char* s) { write_file(name, s, strlen(s)); }

// The token bytes of ids, one behind the other, in fresh memory.
static char* decode(const Tokenizer* t, const uint16_t* ids, size_t n_ids, size_t* n) {
    char* text = NULL;
    FILE* f = open_memstream(&text, n);
    for (size_t i = 0; i < n_ids; i++) {
        int length;
        const char* bytes = tokenizer_bytes(t, ids[i], &length);
        fwrite(bytes, 1, (size_t)length, f);
    }
    fclose(f);
    return text;
}

// Runs a shell command. Returns its exit status, and the number of lines on stderr in *n_lines.
static int run_command(const char* command, int* n_lines) {
    char *err = path_in_folder("stderr"), *full = xprintf("%s >/dev/null 2>%s", command, err);
    fflush(stdout);
    int status = system(full);
    size_t size;
    char* lines = read_file(err, &size);
    *n_lines = 0;
    for (size_t i = 0; i < size; i++) *n_lines += lines[i] == '\n';
    free(lines);
    free(full);
    free(err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Runs ./prepare with these arguments, where every % stands for the folder.
static int run_prepare(const char* arguments, int* n_lines) {
    char* command = NULL;
    size_t size;
    FILE* f = open_memstream(&command, &size);
    fprintf(f, "%s ", program);
    for (const char* s = arguments; *s; s++) {
        if (*s == '%') fputs(folder, f);
        else fputc(*s, f);
    }
    fclose(f);
    int status = run_command(command, n_lines);
    free(command);
    return status;
}

// Whether a file has this SHA-256, by the system's sha256sum.
static int has_sha256(const char* path, const char* sum) {
    char found[65] = "", *command = xprintf("sha256sum %s", path);
    FILE* f = popen(command, "r");
    int n = f ? fscanf(f, "%64s", found) : 0;
    if (f) pclose(f);
    free(command);
    return n == 1 && strcmp(found, sum) == 0;
}

// -------------------------------------------------------------------------------------------------
// Oracles

// The first piece of a text by the pattern: alternatives in order, each greedy and backtracking.
static size_t piece_by_pattern(const Tokenizer* t, const char* text, size_t n) {
    static const char* const contractions[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    int classes[64];
    size_t starts[65], count = 0;
    for (size_t at = 0; at < n && count < 64; count++) {
        starts[count] = at;
        at += character_at(t, (const uint8_t*)text + at, n - at, &classes[count]);
        starts[count + 1] = at;
    }
    for (int i = 0; i < 7; i++) {
        size_t length = strlen(contractions[i]);
        if (length <= n && memcmp(text, contractions[i], length) == 0) return length;
    }
    static const int runs[] = {LETTER, NUMBER, SIGN};
    for (int i = 0; i < 3; i++) {
        for (int with_space = text[0] == ' '; with_space >= 0; with_space--) {
            size_t k = (size_t)with_space;
            while (k < count && classes[k] == runs[i]) k++;
            if (k > (size_t)with_space) return starts[k];
        }
    }
    size_t run = 0;
    while (run < count && classes[run] == SPACE) run++;
    for (size_t k = run; k >= 1; k--) {
        if (k == count || classes[k] == SPACE) return starts[k];
    }
    return starts[run];
}

// One merge after the other, each from left to right.
static size_t encode_by_replacing(const Tokenizer* t, const char* s, size_t n, uint16_t* ids) {
    for (size_t i = 0; i < n; i++) ids[i] = t->id_of[(uint8_t)s[i]];
    for (int id = 256; id < t->eot; id++) {
        size_t kept = 0;
        for (size_t i = 0; i < n; kept++) {
            int is_pair =
                i + 1 < n && ids[i] == t->halves[id][0] && ids[i + 1] == t->halves[id][1];
            ids[kept] = is_pair ? (uint16_t)id : ids[i];
            i += is_pair ? 2 : 1;
        }
        n = kept;
    }
    return n;
}

enum { NAIVE_VOCAB = 600 };

// Recounts all pairs of all pieces before each merge; ties go to the smaller pair.
static Tokenizer* learn_by_recounting(const char* text, size_t n, int vocab_size) {
    static uint32_t counts[NAIVE_VOCAB][NAIVE_VOCAB];
    Tokenizer* t = tokenizer_create();
    uint16_t* ids = (uint16_t*)xmalloc(n + 1, sizeof(uint16_t));
    char* begins_piece = (char*)xmalloc(n + 1, 1);
    for (size_t at = 0; at < n; at += tokenizer_piece(t, text + at, n - at)) begins_piece[at] = 1;
    for (size_t i = 0; i < n; i++) ids[i] = t->id_of[(uint8_t)text[i]];
    while (t->vocab_size < vocab_size) {
        memset(counts, 0, sizeof(counts));
        for (size_t i = 0; i + 1 < n; i++) counts[ids[i]][ids[i + 1]] += !begins_piece[i + 1];
        uint32_t best = 1, left = 0, right = 0;
        for (int l = 0; l < t->eot; l++) {
            for (int r = 0; r < t->eot; r++) {
                int n_left, n_right;
                tokenizer_bytes(t, l, &n_left);
                tokenizer_bytes(t, r, &n_right);
                if (counts[l][r] <= best || n_left + n_right > MAX_LEARNED) continue;
                best = counts[l][r];
                left = (uint32_t)l;
                right = (uint32_t)r;
            }
        }
        if (best == 1) break;
        uint32_t id = tokenizer_add(t, left << 16 | right);
        size_t kept = 0;
        for (size_t i = 0; i < n; kept++) {
            int is_pair =
                i + 1 < n && ids[i] == left && ids[i + 1] == right && !begins_piece[i + 1];
            begins_piece[kept] = begins_piece[i];
            ids[kept] = is_pair ? (uint16_t)id : ids[i];
            i += is_pair ? 2 : 1;
        }
        n = kept;
    }
    free(ids);
    free(begins_piece);
    return t;
}

// -------------------------------------------------------------------------------------------------
// Characters and pieces

// Bytes of the character at s by Unicode's table of well-formed sequences (table 3-7): only the
// range of the second byte depends on the first.
static size_t length_by_table(const uint8_t* s, size_t n) {
    size_t length = s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3 : 2;
    uint8_t low = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
    uint8_t high = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n < length || s[1] < low || s[1] > high) return 1;
    for (size_t i = 2; i < length; i++) {
        if (s[i] < 0x80 || s[i] > 0xBF) return 1;
    }
    return length;
}

static void test_characters(const Tokenizer* t) {
    static const uint8_t edges[] = {0x00, 0x7F, 0x80, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF};
    size_t wrong = 0, counts[4] = {0, 0, 0, 0};
    for (int i = 0; i < 256 * 256 * 64; i++) {
        uint8_t s[4] = {(uint8_t)(i >> 14), (uint8_t)(i >> 6), edges[i >> 3 & 7], edges[i & 7]};
        for (size_t n = 1; n <= 4; n++) {
            int kind;
            wrong += character_at(t, s, n, &kind) != length_by_table(s, n);
        }
    }
    check("sequences that are read as a character of another length", (double)wrong, 0);
    for (int code = 0; code < 0x110000; code++) counts[t->classes[code]]++;
    check_true("25 code points are white space", counts[SPACE] == 25);
    if (strcmp(UNICODE_VERSION, "14.0.0") != 0) return;
    check_true("Unicode 14 has 131756 letters", counts[LETTER] == 131756);
    check_true("Unicode 14 has 1791 numbers", counts[NUMBER] == 1791);
}

// Random strings over characters that meet every branch of the pattern.
static void test_pieces(const Tokenizer* t) {
    static const char* const pool[] = {" ", " ", "\n", "\t", "'", "'", "s", "t", "r", "e", "v", "m",
        "l", "d", "A", "7", "!", "\xC2\xA0", "\xC2\x85", "\xC3\xA9", "\xE3\x80\x80", "\xC2\xBD",
        "\xE1\xA0\x8E", "\xF0\x9F\x98\x80", "\xCC\x81", "\xFF", "\x80", "\xE4\xBD",
        "\xD0\xB8"};
    size_t wrong = 0;
    for (int trial = 0; trial < 200000; trial++) {
        char text[64];
        size_t n = 0, n_characters = 1 + random_below(12);
        for (size_t i = 0; i < n_characters; i++) {
            const char* character = pool[random_below(sizeof(pool) / sizeof(pool[0]))];
            for (const char* s = character; *s; s++) text[n++] = *s;
        }
        for (size_t at = 0, length; at < n; at += length) {
            length = tokenizer_piece(t, text + at, n - at);
            wrong += length != piece_by_pattern(t, text + at, n - at);
        }
    }
    check("pieces that are not the pattern's, in 200000 strings", (double)wrong, 0);
}

// -------------------------------------------------------------------------------------------------
// Encoding and decoding

// Whether decoding gives back what was encoded, with valid ids and no more of them than bytes.
static int survives(const Tokenizer* t, const char* text, size_t n) {
    uint16_t* ids = (uint16_t*)xmalloc(n + 1, sizeof(uint16_t));
    size_t n_ids = tokenizer_encode(t, text, n, ids), size, n_bad = n_ids > n;
    for (size_t i = 0; i < n_ids; i++) n_bad += ids[i] >= t->eot;
    char* back = decode(t, ids, n_ids, &size);
    int same = n_bad == 0 && size == n && memcmp(back, text, n) == 0;
    free(back);
    free(ids);
    return same;
}

// All strings of one and two bytes, UTF-8 cut at each byte from both sides, and random bytes of
// small and large alphabets.
static void test_round_trip(const Tokenizer* t, const char* name) {
    static const char sample[] =
        "na\xC3\xAFve \xE4\xBD\xA0\xE5\xA5\xBD\xF0\x9F\x98\x80 \xE0\xA4\xA8";
    char bytes[3000], *title = xprintf("strings that do not survive, %s", name);
    size_t lost = !survives(t, "", 0);
    for (int i = 0; i < 256 * 257; i++) {
        bytes[0] = (char)i;
        bytes[1] = (char)(i / 256 - 1);
        lost += !survives(t, bytes, i < 256 ? 1 : 2);
    }
    for (size_t i = 0; i < sizeof(sample); i++) {
        lost += !survives(t, sample, i) + !survives(t, sample + i, sizeof(sample) - i);
    }
    for (int trial = 0; trial < 2000; trial++) {
        size_t n = random_below(sizeof(bytes)), alphabet = 1 + random_below(256);
        size_t first = trial % 2 ? 'a' : 0;
        for (size_t i = 0; i < n; i++) bytes[i] = (char)(first + random_below(alphabet));
        lost += !survives(t, bytes, n);
    }
    check(title, (double)lost, 0);
    free(title);
}

// Pieces of few letters, so that many merges apply, of lengths on both sides of 64.
static void test_merging(const Tokenizer* t, const char* name, int n_trials) {
    char bytes[1000], *title = xprintf("pieces merged otherwise than in order, %s", name);
    uint16_t ids[1000], expected[1000];
    size_t wrong = 0;
    for (int trial = 0; trial < n_trials; trial++) {
        size_t n = trial < 10 ? (size_t)trial + 60 : 1 + random_below(sizeof(bytes));
        size_t alphabet = 1 + random_below(8);
        for (size_t i = 0; i < n; i++) bytes[i] = "aethnsoi"[random_below(alphabet)];
        size_t n_ids = encode_piece(t, bytes, n, ids);
        size_t n_expected = encode_by_replacing(t, bytes, n, expected);
        wrong += n_ids != n_expected || memcmp(ids, expected, 2 * n_ids) != 0;
    }
    check(title, (double)wrong, 0);
    free(title);
}

// The growth in processor time from n/2 to n bytes, the best of three each.
static double time_ratio(const Tokenizer* t, const char* text, size_t n) {
    uint16_t* ids = (uint16_t*)xmalloc(n, sizeof(uint16_t));
    clock_t best[2] = {0, 0};
    for (int trial = 0; trial < 6; trial++) {
        clock_t start = clock();
        tokenizer_encode(t, text, trial % 2 ? n : n / 2, ids);
        clock_t ticks = clock() - start;
        if (trial < 2 || ticks < best[trial % 2]) best[trial % 2] = ticks;
    }
    free(ids);
    return (double)best[1] / (double)best[0];
}

// Long runs are where regular expressions recurse and merging in O(n^2) shows.
static void test_linear_time(const Tokenizer* t) {
    size_t n = 16 << 20;
    char* text = (char*)xmalloc(n, 1);
    memset(text, 'a', n);
    check("time(2n) / time(n), 16 MiB of one letter", time_ratio(t, text, n), 2.5);
    memset(text, ' ', n);
    check("time(2n) / time(n), 4 MiB of spaces", time_ratio(t, text, n / 4), 2.5);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + random_below(26));
    check("time(2n) / time(n), 2 MiB of random letters", time_ratio(t, text, n / 8), 2.5);
    check_true("2 MiB of random letters survive", survives(t, text, n / 8));
    free(text);
}

// -------------------------------------------------------------------------------------------------
// Learning

static int same_merges(const Tokenizer* a, const Tokenizer* b) {
    return a->vocab_size == b->vocab_size && a->start[a->eot] == b->start[b->eot] &&
        memcmp(a->halves, b->halves, sizeof(a->halves)) == 0 &&
        memcmp(a->bytes, b->bytes, a->start[a->eot]) == 0;
}

// No two tokens with the same bytes, and each is what its own bytes are encoded to.
static int has_twins(const Tokenizer* t) {
    uint16_t ids[MAX_LEARNED];
    for (int id = 256; id < t->eot; id++) {
        int n;
        const char* bytes = tokenizer_bytes(t, id, &n);
        if (encode_piece(t, bytes, (size_t)n, ids) != 1 || ids[0] != id) return 1;
    }
    return 0;
}

// The merges, one by one, are those of recounting everything.
static void check_learning(const char* name, const char* text, size_t n, int vocab_size) {
    Text whole = text_of(text, n);
    Tokenizer* t = learn_vocabulary(&whole, 1, vocab_size, &WHOLE);
    Tokenizer* expected = learn_by_recounting(text, n, vocab_size);
    char *title = xprintf("%d ids of %s, as by recounting", t->vocab_size, name);
    check_true(title, same_merges(t, expected) && !has_twins(t));
    free(title);
    tokenizer_free(t);
    tokenizer_free(expected);
}

// Texts with runs, overlaps, ties, long tokens, and too little in them.
static void test_learning(void) {
    static char text[60000];
    const size_t N = sizeof(text);
    memset(text, 'a', N);
    check_learning("one letter", text, N, 300);
    for (size_t i = 0; i < N; i++) text[i] = (char)('a' + random_below(2));
    check_learning("two letters without a space", text, N / 4, 500);
    for (size_t i = 0; i < N; i++) text[i] = "aab "[random_below(4)];
    check_learning("short words, many ties", text, N, 400);
    for (size_t i = 0; i < N; i++) text[i] = (char)random_below(256);
    check_learning("random bytes", text, N, 400);
    for (size_t i = 0; i < N; i++) text[i] = (char)(" \n\n\t'"[random_below(5)]);
    check_learning("white space and apostrophes", text, N, 300);
    check_learning("a text too short for it", "abab abab", 9, 400);
    size_t size;
    char* source = read_file(__FILE__, &size);
    check_learning("this program", source, size < N ? size : N, NAIVE_VOCAB);
    free(source);
}

// So many different words that some of them have the same hash.
static void test_counting(void) {
    enum { N = 300000 };
    static char words[N][8];
    Words w;
    memset(&w, 0, sizeof(w));
    for (int k = 0; k < N; k++) {
        for (int i = 0; i < 8; i++) words[k][i] = (char)('a' + (k * 7LL >> 3 * i & 7));
        words_count(&w, words[k], 8);
    }
    size_t n_same_hash = 0, n_wrong = 0;
    for (int k = 0; k < N; k++) words_count(&w, words[k], 8);
    for (uint32_t i = 0; i < w.n; i++) {
        n_same_hash += w.words[i].next != ABSENT;
        n_wrong += w.words[i].count != 2;
    }
    check_true("some different words have the same hash", n_same_hash > 0);
    check_true("300000 different words are counted twice each", w.n == N && n_wrong == 0);
    free(w.words);
    free(w.index.slots);
}

// The next character of a JSON string of characters below U+10000; -1 if it is none.
static int json_character(char** s) {
    int code = (uint8_t)*(*s)++;
    if (code != '\\') return code >= 0x20 && code < 0x7F && code != '"' ? code : -1;
    code = *(*s)++;
    if (code == '"' || code == '\\') return code;
    char digits[5] = {0}, *end;
    if (code != 'u') return -1;
    memcpy(digits, *s, 4);
    *s += 4;
    code = (int)strtol(digits, &end, 16);
    return end == digits + 4 ? code : -1;
}

// vocab.json names all tokens in order, each with its id.
static int vocab_json_is_right(const Tokenizer* t) {
    size_t size;
    char *json = tokenizer_vocab_json(t, &size), *s = json;
    int ok = *s++ == '{';
    for (int id = 0; ok && id < t->eot; id++) {
        int n;
        const char* bytes = tokenizer_bytes(t, id, &n);
        ok = *s++ == '"';
        for (int i = 0; ok && i < n; i++) {
            int byte_id = t->id_of[(uint8_t)bytes[i]];
            int code = byte_id < 188 ? (uint8_t)bytes[i] : 0x100 + byte_id - 188;
            ok = json_character(&s) == code;
        }
        ok = ok && strncmp(s, "\": ", 3) == 0 && strtol(s + 3, &s, 10) == id;
        ok = ok && *s++ == ',' && *s++ == ' ';
    }
    char* rest = xprintf("\"<|endoftext|>\": %d}", t->eot);
    ok = ok && strcmp(s, rest) == 0 && s + strlen(rest) == json + size;
    free(rest);
    free(json);
    return ok;
}

// -------------------------------------------------------------------------------------------------
// Vocabulary files

// llm.c's tokenizer file of this vocabulary, in fresh memory.
static char* make_binary(const Tokenizer* t, size_t* size) {
    char* file = NULL;
    int32_t header[256] = {20240328, 2, t->vocab_size, t->eot};
    FILE* f = open_memstream(&file, size);
    fwrite(header, sizeof(header), 1, f);
    for (int id = 0; id < t->eot; id++) {
        int n;
        const char* bytes = tokenizer_bytes(t, id, &n);
        fputc(n, f);
        fwrite(bytes, 1, (size_t)n, f);
    }
    fprintf(f, "%c<|endoftext|>", 13);
    fclose(f);
    return file;
}

// Whether a file of these bytes is read as the vocabulary expected.
static int loads_as(const char* name, const char* bytes, size_t n, const Tokenizer* expected) {
    write_file(name, bytes, n);
    char* path = path_in_folder(name);
    Tokenizer* t = tokenizer_load(path);
    int same = same_merges(t, expected);
    tokenizer_free(t);
    free(path);
    return same;
}

static void test_files(const Tokenizer* t) {
    size_t n_merges, n_binary;
    char *merges = tokenizer_merges(t, &n_merges), *binary = make_binary(t, &n_binary);
    check_true("vocab.bpe is read as it was written", loads_as("saved.bpe", merges, n_merges, t));
    check_true("llm.c's file gives the same merges", loads_as("t.bin", binary, n_binary, t));
    check_true("vocab.json names all tokens in order", vocab_json_is_right(t));
    free(merges);
    free(binary);
}

// Ends a child at once: a sanitizer's search for leaks would take most of the test's time.
static void leave(int code, void* unused) {
    (void)unused;
    _exit(code);
}

// Loads a file of these bytes in a process of its own. Returns the exit code; -1 for a signal, -2
// if the code is not 0 and the error is not one line.
static int load_code(const char* bytes, size_t n) {
    int pipes[2], status;
    write_file("bad", bytes, n);
    if (pipe(pipes) != 0) return -3;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        on_exit(leave, NULL);
        tokenizer_free(tokenizer_load(path_in_folder("bad")));
        _exit(0);
    }
    close(pipes[1]);
    char error[4096];
    size_t length = 0;
    for (ssize_t got; (got = read(pipes[0], error + length, sizeof(error) - length)) > 0;) {
        length += (size_t)got;
    }
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status)) return -1;
    int is_line = length > 0 && memchr(error, '\n', length) == error + length - 1;
    return WEXITSTATUS(status) == 0 || is_line ? WEXITSTATUS(status) : -2;
}

// One fault a file; nothing but the fault keeps it from being read.
static void test_bad_merges(void) {
    static const struct { const char *what, *text; } cases[] = {
        {"empty", ""}, {"only a comment without an end", "#version: 0.2"},
        {"no comment", "a b\n"}, {"another comment", "#a b\n"}, {"no end of line", "a b"},
        {"one token", "ab\n"}, {"no left half", " b\n"}, {"no right half", "a \n"},
        {"a space in front", " a b\n"}, {"two spaces", "a  b\n"}, {"a space behind", "a b \n"},
        {"three tokens", "a b c\n"}, {"an empty line", "a b\n\nc d\n"},
        {"a carriage return", "a b\r\n"}, {"a tab", "a\tb\n"},
        {"a half that is no token", "ab c\n"}, {"a half from below", "ab c\na b\n"},
        {"the same merge again", "a b\na b\n"}, {"a token again", "a b\nab c\nb c\na bc\n"},
        {"a merge that nothing reaches", "b c\na b\nab c\n"},
        {"a byte that has no symbol", "a \x01\n"}, {"a symbol above U+0143", "a \xC5\x84\n"},
        {"a soft hyphen, which is U+0143", "a \xC2\xAD\n"},
        {"a symbol below U+00A1", "a \xC2\xA0\n"}, {"half of a symbol", "a \xC4\n"},
        {"invalid UTF-8", "a \xFF\n"}, {"a symbol of three bytes", "a \xE4\xBD\xA0\n"},
        {"an overlong symbol", "a \xC1\xA2\n"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char* text = xprintf("%s%s", i < 4 ? "" : "#version: 0.2\n", cases[i].text);
        char* title = xprintf("vocab.bpe refused: %s", cases[i].what);
        check_true(title, load_code(text, strlen(text)) == EXIT_INPUT);
        free(title);
        free(text);
    }
    check_true("vocab.bpe refused: a zero byte", load_code("#version: 0.2\na b\n\0", 19) == 3);
}

// 65,278 pairs of bytes are as many merges as there may be.
static void test_most_merges(void) {
    Tokenizer* t = tokenizer_create();
    for (uint32_t i = 0; t->vocab_size < MAX_VOCAB; i++) {
        tokenizer_add(t, (i & 0xFF) << 16 | i >> 8);
    }
    size_t n;
    char* merges = tokenizer_merges(t, &n);
    check_true("65278 merges are read", load_code(merges, n) == 0);
    char* more = xprintf("%s\xC5\x83 \xC5\x83\n", merges);
    check_true("65279 merges are refused", load_code(more, strlen(more)) == EXIT_INPUT);
    free(more);
    free(merges);
    tokenizer_free(t);
}

// A good file with another number in its header, or another byte at its end.
static void test_bad_binary(const Tokenizer* t) {
    size_t n;
    char* good = make_binary(t, &n);
    static const struct { const char* what; int word, value; } headers[] = {
        {"version 0", 1, 0}, {"version 3", 1, 3}, {"version 1 and not 50257 tokens", 1, 1},
        {"no tokens", 2, 0}, {"a negative count", 2, -1}, {"256 tokens", 2, 256},
        {"65536 tokens", 2, 65536}, {"2^31 - 1 tokens", 2, INT32_MAX}, {"end of text 0", 3, 0},
        {"end of text behind the last token", 3, 1 << 20}};
    for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
        char *bad = (char*)xmalloc(n, 1), *title = xprintf(".bin refused: %s", headers[i].what);
        memcpy(bad, good, n);
        memcpy(bad + 4 * headers[i].word, &headers[i].value, 4);
        check_true(title, load_code(bad, n) == EXIT_INPUT);
        free(title);
        free(bad);
    }
    static const struct { const char* what; int from_end, value; } bytes[] = {
        {"a token of no bytes", 14, 0}, {"another end of text", 1, '?'},
        {"an end that is longer", 14, 14}, {"an end that is much longer", 14, 255}};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        char *bad = (char*)xmalloc(n, 1), *title = xprintf(".bin refused: %s", bytes[i].what);
        memcpy(bad, good, n);
        bad[n - (size_t)bytes[i].from_end] = (char)bytes[i].value;
        check_true(title, load_code(bad, n) == EXIT_INPUT);
        free(title);
        free(bad);
    }
    char* longer = (char*)xmalloc(n + 64, 1);
    memcpy(longer, good, n);
    check_true(".bin refused: one byte more", load_code(longer, n + 1) == EXIT_INPUT);
    check_true(".bin refused: 64 bytes more", load_code(longer, n + 64) == EXIT_INPUT);
    longer[n - 14] = 14;
    check_true(".bin refused: an end of another name", load_code(longer, n + 1) == EXIT_INPUT);
    longer[n - 14] = 13;
    longer[1024 + 1] = '"';
    check_true(".bin refused: bytes in another order", load_code(longer, n) == EXIT_INPUT);
    // A header alone, and an end of text that has one more token behind it.
    int32_t none[256] = {20240328, 2, 0, -1};
    check_true(".bin refused: nothing", load_code((char*)none, sizeof(none)) == EXIT_INPUT);
    int32_t header[4] = {20240328, 2, 258, 256};
    memcpy(longer, good, 1024 + 2 * 256);
    memcpy(longer, header, sizeof(header));
    memcpy(longer + 1024 + 2 * 256, "\15<|endoftext|>\2ab", 17);
    check_true(".bin refused: text behind its end", load_code(longer, 1024 + 529) == EXIT_INPUT);
    free(longer);
    free(good);
}

// Every shorter file is refused, or is a whole file of fewer lines; every other change of one byte
// is refused or makes another whole file. Nothing ends by a signal.
static void test_broken_files(const Tokenizer* t) {
    size_t n_binary, n_merges, wrong = 0;
    char *binary = make_binary(t, &n_binary), *merges = tokenizer_merges(t, &n_merges);
    for (size_t n = 0; n < n_binary; n += n > 20 && n < 900 ? 53 : 1) {
        wrong += load_code(binary, n) != EXIT_INPUT;
    }
    check("truncated .bin files not refused", (double)wrong, 0);
    wrong = 0;
    for (size_t n = 0; n < n_merges; n++) {
        int is_whole = n > 0 && merges[n - 1] == '\n';
        wrong += load_code(merges, n) != (is_whole ? 0 : EXIT_INPUT);
    }
    check("truncated vocab.bpe files not refused", (double)wrong, 0);
    wrong = 0;
    for (int trial = 0; trial < 300; trial++) {
        char* bytes = trial % 2 ? binary : merges;
        size_t n = trial % 2 ? n_binary : n_merges, at = random_below(n);
        char before = bytes[at];
        bytes[at] = (char)random_below(256);
        int code = load_code(bytes, n);
        wrong += code != 0 && code != EXIT_INPUT;
        bytes[at] = before;
    }
    check("files with one other byte neither read nor refused", (double)wrong, 0);
    free(binary);
    free(merges);
}

// -------------------------------------------------------------------------------------------------
// GPT-2's vocabulary

// A line of the vectors: hexadecimal bytes, a tab, ids. Returns whether they are what we encode.
static int vector_is_right(const Tokenizer* t, char* line) {
    char bytes[4096];
    uint16_t ids[4096];
    size_t n = 0, n_expected = 0;
    for (; *line != '\t'; line += 2, n++) {
        unsigned byte;
        if (sscanf(line, "%2x", &byte) != 1) return 0;
        bytes[n] = (char)byte;
    }
    size_t n_ids = tokenizer_encode(t, bytes, n, ids);
    for (char* next = ++line; *line; line = next, n_expected++) {
        long id = strtol(line, &next, 10);
        if (next == line || n_expected >= n_ids || ids[n_expected] != id) return 0;
    }
    return n_ids == n_expected && survives(t, bytes, n);
}

// Bytes that are not UTF-8 are signs, and kept. (A reader that replaces them would lose them.)
static const char* const INVALID_UTF8[] = {"80\t222", "ff\t187", "fe\t186", "c0af\t124 107",
    "c1bf\t125 123", "e08080\t156 222 222", "eda080\t169 254 222",
    "eda0bdedb880\t169 254 121 169 116 222", "f4908080\t176 238 222 222",
    "f8888080\t180 230 222 222", "e4bd\t19526", "f09f98\t47249", "61e4bd62\t64 19526 65",
    "6180ff62\t64 222 187 65",
    "20ff20ff\t220 187 220 187", "c3\t127", "63616663e9\t66 1878 66 165",
    "63616661206cc3a920e9\t66 28485 300 2634 16268", "0a80200a\t198 222 220 198",
    "8080808080808080\t222 222 222 222 222 222 222 222", "f09f9880f09f98\t47249 222 47249"};

// What was made with OpenAI's own encoder, and what OpenAI has published.
static void test_gpt2(const Tokenizer* t) {
    char* path = xprintf("%s/gpt2_vectors.tsv", data_dir);
    size_t size, n = 0, wrong = 0;
    char *file = read_file(path, &size), *line = file;
    for (char* end; (end = strchr(line, '\n')) != NULL; line = end + 1, n++) {
        *end = 0;
        wrong += !vector_is_right(t, line);
    }
    check_true("216 vectors", n == 216);
    check("vectors that differ from GPT-2's ids", (double)wrong, 0);
    wrong = 0;
    for (size_t i = 0; i < sizeof(INVALID_UTF8) / sizeof(INVALID_UTF8[0]); i++) {
        char* copy = xprintf("%s", INVALID_UTF8[i]);
        wrong += !vector_is_right(t, copy);
        free(copy);
    }
    check("vectors of invalid UTF-8 that differ", (double)wrong, 0);
    size_t n_merges, n_json;
    char *merges = tokenizer_merges(t, &n_merges), *json = tokenizer_vocab_json(t, &n_json);
    write_file("gpt2.bpe", merges, n_merges);
    write_file("gpt2.json", json, n_json);
    char *bpe_path = path_in_folder("gpt2.bpe"), *json_path = path_in_folder("gpt2.json");
    check_true("vocab.bpe is written to the byte as published",
        has_sha256(bpe_path, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"));
    check_true("vocab.json is written to the byte as published",
        has_sha256(json_path, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"));
    size_t n_binary, n_again;
    char *binary = make_binary(t, &n_binary), *binary_path = path_in_folder("gpt2.bin");
    write_file("gpt2.bin", binary, n_binary);
    Tokenizer* from_binary = tokenizer_load(binary_path);
    char* again = tokenizer_merges(from_binary, &n_again);
    check_true("llm.c's file of it makes the same vocab.bpe",
        n_again == n_merges && memcmp(again, merges, n_merges) == 0);
    tokenizer_free(from_binary);
    free(again);
    free(binary);
    free(binary_path);
    test_merging(t, "GPT-2's", 30);
    test_round_trip(t, "GPT-2's");
    free(bpe_path);
    free(json_path);
    free(merges);
    free(json);
    free(file);
    free(path);
}

// -------------------------------------------------------------------------------------------------
// The program

// The tokens of a shard in the folder, in fresh memory.
static uint16_t* read_shard(const char* name, size_t* n) {
    char* path = path_in_folder(name);
    size_t size;
    char* file = read_file(path, &size);
    Shard shard;
    shard_open(&shard, path);  // checks its header and size
    *n = (size_t)shard.n_tokens;
    free(shard.path);
    uint16_t* ids = (uint16_t*)xmalloc(*n, sizeof(uint16_t));
    memcpy(ids, file + SHARD_HEADER, 2 * *n);
    free(file);
    free(path);
    return ids;
}

// The bytes of a shard's tokens, | for <|endoftext|>.
static char* read_shard_text(const Tokenizer* t, const char* name) {
    char* text = NULL;
    size_t n, size;
    uint16_t* ids = read_shard(name, &n);
    FILE* f = open_memstream(&text, &size);
    for (size_t i = 0; i < n; i++) {
        int length;
        const char* bytes = tokenizer_bytes(t, ids[i], &length);
        if (ids[i] == t->eot) fputc('|', f);
        else fwrite(bytes, 1, (size_t)length, f);
    }
    fclose(f);
    free(ids);
    return text;
}

// Runs ./prepare on a text, with bytes for tokens, and compares both parts whole.
static void check_split(
    const char* text, const char* options, const char* train, const char* val) {
    int n_lines;
    Tokenizer* t = tokenizer_create();
    char *arguments = xprintf("%%/in.txt --out %%/out --vocab 257 %s", options);
    write_string("in.txt", text);
    int code = run_prepare(arguments, &n_lines);
    char *got_train = read_shard_text(t, "out/train_000000.bin");
    char *got_val = read_shard_text(t, "out/val_000000.bin");
    char* title = xprintf("train %s, val %s", train, val);
    for (char* s = title; *s; s++) *s = *s == '\n' ? '/' : *s;
    check_true(title, code == 0 && !strcmp(got_train, train) && !strcmp(got_val, val));
    tokenizer_free(t);
    free(got_train);
    free(got_val);
    free(title);
    free(arguments);
}

static void test_splits(void) {
    // A part of the bytes: anywhere, at a line, a character, a document, or inside a long one.
    check_split("abcdefghij", "", "|abcdefghi", "|j");
    check_split("abcdefghij", "--val-fraction 0.3", "|abcdefg", "|hij");
    check_split("abcde\nf\nghijkl", "--val-fraction 0.6", "|abcde\n", "|f\nghijkl");
    check_split("abcde\nfghij\nkl", "--val-fraction=0.5", "|abcde\nf", "|ghij\nkl");
    check_split("abcdef\nghijkl", "--val-fraction 0.6", "|abcdef\n", "|ghijkl");
    check_split("ab\xC3\xA9\xC3\xA9", "--val-fraction 0.5", "|ab\xC3\xA9", "|\xC3\xA9");
    check_split("aaaa-bbbb-cc-", "--split-docs - --val-fraction 0.5", "|aaaa-|bbbb-", "|cc-");
    check_split("a-bbbbbbbbb", "--split-docs - --val-fraction 0.5", "|a-|bbbb", "|bbbbb");
    // The first tokens; documents that are empty, and none behind the last separator.
    check_split("ab-cd-", "--split-docs - --val-tokens 3", "-|cd-", "|ab");
    check_split("--a--b", "--split-docs - --val-tokens 1", "-|-|a-|-|b", "|");
    check_split("a\n\nb\tc", "--split-docs '\\n\\n' --val-tokens 2", "\n\n|b\tc", "|a");
    check_split("a\\b\tc", "--split-docs='\\\\' --val-tokens 2", "\\|b\tc", "|a");
    // Two texts.
    write_string("more.txt", "xyz");
    check_split("abcdef", "%/more.txt --val-fraction 0.4", "|abcdef", "|xyz");
    check_split("abcdef", "%/more.txt --val-fraction 0.1", "|abcdef|xy", "|z");
    check_split("abcdef", "--val-text %/more.txt", "|abcdef", "|xyz");
}

// Choices on bytes, two on one byte, a stop that falls to the next <|endoftext|>, and one that has
// none; then the files of a longer earlier run, which must be gone.
static void test_floor(void) {
    int n_lines;
    size_t size;
    write_string("v.txt", "ab cd\n\nef\n\n");
    write_string("v.floor", "offset\tnats\n0\t0.5\n3\t1\n3\t0.25\n5\t2\n7\t0.125\n9\t3\n");
    check_true("val with a floor", run_prepare("%/v.txt --val-text %/v.txt --split-docs '\\n\\n' "
        "--vocab 257 --out %/floor", &n_lines) == 0);
    char *path = path_in_folder("floor/floor.tsv"), *floor = read_file(path, &size);
    check_true("floor.tsv has choices by token",
        !strcmp(floor, "token\tnats\n1\t0.5\n4\t1.25\n8\t2\n9\t0.125\n"));
    free(floor);
    write_string("floor/train_000007.bin", "old");
    run_prepare("%/v.txt --vocab 257 --out %/floor", &n_lines);
    char* old = path_in_folder("floor/train_000007.bin");
    check_true("an older floor is removed", access(path, F_OK) != 0);
    check_true("an older shard is removed", access(old, F_OK) != 0);
    free(old);
    free(path);
}

// The floor of a longer text with a learned vocabulary, against the bytes of each token.
static void test_long_floor(void) {
    enum { N = 20000 };
    static double nats[N + 1];
    static char text[N + 1];
    int n_lines;
    for (int i = 0; i < N; i++) text[i] = "ab ba-"[random_below(6)];
    char* rows = NULL;
    size_t size, n, at = 0;
    FILE* f = open_memstream(&rows, &size);
    fprintf(f, "offset\tnats\n");
    for (int i = 0; i < N; i++) {
        nats[i] = random_below(3) ? 0 : (double)(1 + random_below(1000)) / 64;
        if (nats[i] > 0) fprintf(f, "%d\t%.17g\n", i, nats[i]);
    }
    fclose(f);
    write_string("w.txt", text);
    write_string("w.floor", rows);
    check_true("val with a longer floor", run_prepare("%/w.txt --val-text %/w.txt --split-docs - "
        "--vocab 300 --out %/floor", &n_lines) == 0);
    char *vocab = path_in_folder("floor/vocab.bpe"), *tsv = path_in_folder("floor/floor.tsv");
    Tokenizer* t = tokenizer_load(vocab);
    uint16_t* ids = read_shard("floor/val_000000.bin", &n);
    char *file = read_file(tsv, &size), *row = strchr(file, '\n') + 1;
    double worst = 0, stop = 0;
    for (size_t i = 0; i < n; i++) {
        int length;
        tokenizer_bytes(t, ids[i], &length);
        double sum = ids[i] == t->eot ? stop : 0, found = 0;
        if (ids[i] == t->eot) stop = 0;
        for (int k = 0; k < length; k++, at++) {
            if (text[at] == '-') stop = nats[at];
            else sum += nats[at];
        }
        if (*row && strtoul(row, NULL, 10) == i) {
            found = strtod(strchr(row, '\t'), &row);
            row++;
        }
        if (fabs(found - sum) > worst) worst = fabs(found - sum);
    }
    check("floor of each token, largest error", worst, 1e-6);
    tokenizer_free(t);
    free(ids);
    free(file);
    free(vocab);
    free(tsv);
    free(rows);
}

// An evaluation set word by word. One ending has a space in front, the others get it.
static void test_eval(void) {
    // The second word, the bytes of the example, is 2 * n. Letters and spaces stand for their ids.
    // 256 is <|endoftext|>, with which a context begins.
    enum { n = 26 };
    static const int expected[n] = {65535, 2 * n, 0, 2, 4, 4, 256, 'a', 'b', 'c', 2, ' ', 'd', 3,
        ' ', 'e', 'f', 2, ' ', 'g', 5, ' ', 'h', ' ', 'i', 'j'};
    int n_lines;
    size_t size, n_wrong = 0;
    write_string("q.one.tsv", "2\tabc\t d\tef\t g\th ij\n0\tk\tl\tm\tn\to\n");
    write_string("more.txt", "xyz");
    check_true("a vocabulary for questions",
        run_prepare("%/more.txt --vocab 257 --out %/questions", &n_lines) == 0);
    check_true("--eval alone", run_prepare("--eval %/q.one.tsv --out %/questions", &n_lines) == 0);
    char *path = path_in_folder("questions/q.one.bin"), *file = read_file(path, &size);
    int32_t header[4];
    memcpy(header, file, sizeof(header));
    uint16_t* words = (uint16_t*)xmalloc(size, 1);
    memcpy(words, file + 1024, size - 1024);
    Tokenizer* t = tokenizer_create();
    for (size_t i = 0; i < n; i++) {
        int is_text = i > 6 && expected[i] >= ' ';
        n_wrong += words[i] != (is_text ? t->id_of[expected[i]] : expected[i]);
    }
    check("words of an example that differ", (double)n_wrong, 0);
    check_true("the second example follows", words[n] == 65535 && words[n + 2] == 1);
    check_true("header of an evaluation set",
        header[0] == 20240522 && header[1] == 1 && header[2] == 2 && header[3] == 2 * n);
    check_true("size of an evaluation set", size == 1024 + 2 * (n + 5 + 3 + 4 * 3));
    Questions questions = questions_open(path, 257);
    check_true("eval.h reads both examples", questions.n_examples == 2);
    free(questions.text);
    tokenizer_free(t);
    free(words);
    free(file);
    free(path);
}

// Command lines and inputs that must end with this code, one line of error, and no folder made.
static void test_refusals(void) {
    static const struct { const char* arguments; int code; } cases[] = {
        {"", 2}, {"--out %/none", 2}, {"%/in.txt", 2}, {"%/in.txt --out %/none --vocb 300", 2},
        {"%/in.txt --out %/none --vocab 30x", 2}, {"%/in.txt --out %/none --vocab 256", 2},
        {"%/in.txt --out %/none --vocab 65536", 2}, {"%/in.txt --out %/none --vocab", 2},
        {"%/in.txt --out %/none --vocab 300 --bpe %/saved.bpe", 2},
        {"%/in.txt --out %/none --val-tokens 0", 2}, {"%/in.txt --out %/none --val-tokens -5", 2},
        {"%/in.txt --out %/none --val-fraction 1", 2},
        {"%/in.txt --out %/none --val-fraction nan", 2},
        {"%/in.txt --out %/none --val-fraction 0.1 --val-tokens 5", 2},
        {"%/in.txt --out %/none --split-docs '\\q'", 2},
        {"%/in.txt --out %/none --split-docs '\\'", 2},
        {"--eval %/q.one.tsv", 2}, {"--eval %/q.one.tsv --out %/none --vocab 300", 2},
        {"--eval %/train_1.tsv --out %/none", 2}, {"--eval %/q.one.tsv --out %/none", 3},
        {"%/missing.txt --out %/none", 3}, {"% --out %/none", 3}, {"%/fifo --out %/none", 3},
        {"/dev/zero --out %/none", 3}, {"%/empty.txt --out %/none", 3},
        {"%/one.txt --out %/none", 3}, {"%/in.txt --val-text %/missing --out %/none", 3},
        {"%/in.txt --bpe %/in.txt --out %/none", 3}, {"%/in.txt --bpe %/missing --out %/none", 3},
        {"%/in.txt --val-text %/f1.txt --out %/none", 3},
        {"%/in.txt --val-text %/f2.txt --out %/none", 3},
        {"%/in.txt --val-text %/f3.txt --out %/none", 3},
        {"%/in.txt --val-text %/f4.txt --out %/none", 3},
        {"--eval %/e1.tsv --bpe %/saved.bpe --out %/none", 3},
        {"--eval %/e2.tsv --bpe %/saved.bpe --out %/none", 3},
        {"--eval %/e3.tsv --bpe %/saved.bpe --out %/none", 3},
        {"--eval %/e4.tsv --bpe %/saved.bpe --out %/none", 3},
        {"--eval %/e5.tsv --bpe %/saved.bpe --out %/none", 3},
        {"--eval %/e6.tsv --bpe %/saved.bpe --out %/none", 3}, {"%/in.txt --out %/in.txt/x", 4}};
    static const char* const files[][2] = {{"empty.txt", ""}, {"one.txt", "x"}, {"f1.txt", "abc"},
        {"f1.floor", "nats\n"}, {"f2.txt", "abc"}, {"f2.floor", "offset\tnats\n2\t1\n1\t1\n"},
        {"f3.txt", "abc"}, {"f3.floor", "offset\tnats\n4\t1\n"}, {"f4.txt", "abc"},
        {"f4.floor", "offset\tnats\n1\t1"}, {"e1.tsv", "4\ta\tb\tc\td\te\n"},
        {"e2.tsv", "1\ta\tb\tc\td\n"}, {"e3.tsv", "1\ta\tb\tc\td\te\tf\n"},
        {"e4.tsv", "1\ta\tb\t\td\te\n"},
        {"e5.tsv", "1\ta\tb\tc\td\te"}, {"e6.tsv", "1\ta\tb\tc\td\te\r\n"}};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        write_string(files[i][0], files[i][1]);
    }
    char *fifo = path_in_folder("fifo"), *none = path_in_folder("none");
    if (mkfifo(fifo, 0600) != 0) check_true("a FIFO to refuse", 0);
    write_string("in.txt", "some text to prepare");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int n_lines, code = run_prepare(cases[i].arguments, &n_lines);
        char* title = xprintf("code %d: %s", cases[i].code, cases[i].arguments);
        check_true(title, code == cases[i].code && n_lines == 1 && access(none, F_OK) != 0);
        free(title);
    }
    int n_lines;
    check_true("more val tokens than tokens",
        run_prepare("%/in.txt --out %/many --vocab 257 --val-tokens 21", &n_lines) == 2);
    char* part = path_in_folder("many/val_000000.bin.part");
    check_true("and nothing is left of it", access(part, F_OK) != 0);
    check_true("--help", run_prepare("--help", &n_lines) == 0);
    free(part);
    free(none);
    free(fifo);
}

// llm.c's shards of tinyshakespeare, and a vocabulary of our own that loses no byte of it.
static void test_shakespeare(void) {
    int n_lines;
    char* arguments = xprintf("%s/tinyshakespeare.txt --bpe %s/vocab.bpe --split-docs '\\n\\n' "
        "--val-tokens 32768 --out %%/llmc", data_dir, data_dir);
    check_true("tinyshakespeare by GPT-2's vocabulary", run_prepare(arguments, &n_lines) == 0);
    free(arguments);
    char* train = path_in_folder("llmc/train_000000.bin");
    char* val = path_in_folder("llmc/val_000000.bin");
    check_true("train shard is llm.c's",
        has_sha256(train, "8a70606be574040c26d225694f5f9759973b419852d22f7fe5c118e1b359dcc8"));
    check_true("val shard is llm.c's",
        has_sha256(val, "fe99db720dc7c83e694806d4e047a952909411da1daccde4ccc2e55f40882a62"));
    free(train);
    free(val);
    arguments = xprintf("%s/tinyshakespeare.txt --vocab 1000 --out %%/own", data_dir);
    check_true("tinyshakespeare by its own vocabulary", run_prepare(arguments, &n_lines) == 0);
    free(arguments);
    char* vocab = path_in_folder("own/vocab.bpe");
    char* path = xprintf("%s/tinyshakespeare.txt", data_dir);
    Tokenizer* t = tokenizer_load(vocab);
    size_t size;
    char *text = read_file(path, &size), *first = read_shard_text(t, "own/train_000000.bin");
    char* second = read_shard_text(t, "own/val_000000.bin");
    size_t n_first = strlen(first) - 1, n_second = strlen(second) - 1;
    check_true("its tokens are its bytes, none lost", n_first + n_second == size &&
        !memcmp(first + 1, text, n_first) && !memcmp(second + 1, text + n_first, n_second));
    check_learning("Shakespeare", text, 100000, NAIVE_VOCAB);
    tokenizer_free(t);
    free(first);
    free(second);
    free(text);
    free(path);
    free(vocab);
}

int main(int argc, char** argv) {
    if (argc != 2) die(EXIT_USAGE, "test_tokenizer", "%d arguments, need ./prepare", argc - 1);
    program = argv[1];
    data_dir = getenv("DATA");
    snprintf(folder, sizeof(folder), "/tmp/test_tokenizer_XXXXXX");
    if (!mkdtemp(folder)) die_errno(EXIT_RESOURCES, folder, "need a folder");
    char* floor_dir = path_in_folder("floor");
    make_folder(floor_dir);
    free(floor_dir);

    size_t size;
    char* source = read_file(__FILE__, &size);
    Text text = text_of(source, size), start = text_of(source, 3000);
    Tokenizer* t = learn_vocabulary(&text, 1, NAIVE_VOCAB, &WHOLE);
    Tokenizer* again = learn_vocabulary(&text, 1, NAIVE_VOCAB, &WHOLE);
    Tokenizer* small = learn_vocabulary(&start, 1, 280, &WHOLE);
    check_true("the same text gives the same vocabulary", same_merges(t, again));
    // Those that fork come first, while there is little memory to copy.
    test_bad_merges();
    test_bad_binary(small);
    test_broken_files(small);
    test_most_merges();
    test_files(t);
    test_characters(t);
    test_pieces(t);
    test_round_trip(t, "learned");
    test_merging(t, "learned", 300);
    test_linear_time(t);
    test_learning();
    test_counting();
    test_splits();
    test_floor();
    test_long_floor();
    test_eval();
    test_refusals();
    if (data_dir) {
        char* path = xprintf("%s/vocab.bpe", data_dir);
        Tokenizer* gpt2 = tokenizer_load(path);
        test_gpt2(gpt2);
        test_shakespeare();
        tokenizer_free(gpt2);
        free(path);
    } else {
        printf("GPT-2's vocabulary: skipped, DATA names no folder\n");
    }
    tokenizer_free(t);
    tokenizer_free(again);
    tokenizer_free(small);
    free(source);
    char* command = xprintf("rm -r %s", folder);
    if (system(command) != 0) printf("%s is left\n", folder);
    free(command);
    return checks_close();
}
