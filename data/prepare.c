// prepare.c: text files to token shards, with a vocabulary that is learned here or given.
//
//     ./prepare story1.txt story2.txt --out data/mine --vocab 4096
//
// Writes shards (see tokens.h) train_000000.bin ... and val_000000.bin ..., and vocab.bpe; if the
// val text has a floor, floor.tsv; for --eval NAME.tsv, a multiple-choice set NAME.bin. All input
// is checked before the first file is written. A file gets its name when it is whole, and shards or
// a floor of an earlier run do not stay beside new ones.
//
// The stream of tokens has <|endoftext|> before each document; a separator belongs to the document
// that it ends. Texts are mapped, not read, and so may be larger than memory.
// It refuses: other inputs than plain files, cleaning, shuffling, and threads: one core encodes
// tens of megabytes a second.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // memmem
#endif
#include "eval.h"
#include "options.h"
#include "tokenizer.h"
#include <signal.h>
#include <sys/mman.h>

// -------------------------------------------------------------------------------------------------
// Options

typedef struct {
    const char *out, *bpe, *val_text, *split_docs, *eval;  // "" where not given
    long long vocab, val_tokens;                           // val_tokens may be AUTO: no such part
    double val_fraction;                                   // may be NAN: the default
    int help;
} PrepareOptions;

#define ROW(field, letter, kind, value, low, high, help) \
    {#field, letter, kind, offsetof(PrepareOptions, field), value, low, high, help}
static const Option OPTIONS[] = {
    ROW(out, 'o', TEXT, "", 0, 0, "folder to write to, made if needed"),
    ROW(vocab, 0, COUNT, "8192", 257, MAX_VOCAB, "ids of the vocabulary that is learned"),
    ROW(bpe, 0, TEXT, "", 0, 0, "use this vocab.bpe or llm.c tokenizer .bin, learn none"),
    ROW(val_text, 0, TEXT, "", 0, 0, "val is this text; X.floor beside X.txt is carried over"),
    ROW(val_tokens, 0, COUNT, "auto", 1, 1e15, "val is the first so many tokens"),
    ROW(val_fraction, 0, REAL, "auto", 1e-6, 0.999999,
        "val is the last part of the bytes; auto: 0.1, but at most 10 MB"),
    ROW(split_docs, 0, TEXT, "", 0, 0, "documents end with this; \\n \\t \\r \\\\ are read"),
    ROW(eval, 0, TEXT, "", 0, 0, "lines of label, context, 4 endings, by tabs: an evaluation set"),
    ROW(help, 'h', FLAG, "0", 0, 0, "print this and exit"),
};
enum { N_OPTIONS = sizeof(OPTIONS) / sizeof(OPTIONS[0]) };

static void print_help(const OptionTable* table) {
    printf("Text files to token shards, and questions to an evaluation set, for train_gpt.\n"
           "usage: ./prepare TEXT... --out DIR [options]\n"
           "       ./prepare --eval FILE.tsv --out DIR    with DIR/vocab.bpe, or --bpe\n\n");
    options_print_help(table);
    printf("\nWithout --split-docs each file is a document. Texts may be larger than memory.\n"
           "A vocabulary is learned from the train texts, of pairs that occur at least twice.\n");
}

// Refuses what each option alone allows, but not all together.
static void check_options(const PrepareOptions* o, const OptionTable* table, int n_texts) {
    int n_val = option_given(table, "val_text") + option_given(table, "val_tokens") +
        option_given(table, "val_fraction");
    if (!o->out[0]) die(EXIT_USAGE, "--out", "not given, need a folder");
    if (n_texts == 0 && !o->eval[0]) die(EXIT_USAGE, "TEXT", "none given, need a file, see --help");
    if (n_texts == 0 && (n_val > 0 || option_given(table, "vocab") || o->split_docs[0])) {
        die(EXIT_USAGE, "TEXT", "none given, need a file for all options but --bpe and --eval");
    }
    if (o->bpe[0] && option_given(table, "vocab")) {
        die(EXIT_USAGE, "--vocab", "given with --bpe, need one of them");
    }
    if (n_val > 1) {
        die(EXIT_USAGE, "val", "%d ways given, need one of --val-text, --val-tokens and "
            "--val-fraction", n_val);
    }
}

// -------------------------------------------------------------------------------------------------
// Files: texts in, results out

// A text, or a part of one.
typedef struct {
    const char* path;   // of its file, for errors
    const char* bytes;  // mapped, and so not to be written to
    size_t n;
} Text;

// The last words of a signal handler: no printf and no exit, which it must not call.
static void on_shrunk_text(int number) {
    static const char line[] = "error: text: a file became shorter, need it as it was\n";
    (void)number;
    if (write(STDERR_FILENO, line, sizeof(line) - 1) < 0) _exit(EXIT_RESOURCES);
    _exit(EXIT_INPUT);
}

// A text stays mapped until the program ends. Reading past the end of a file that is cut short
// meanwhile raises SIGBUS, which ends the program like any other bad input.
static Text map_text(const char* path) {
    struct stat info;
    int fd = open_regular(path, &info);
    Text text = {path, NULL, (size_t)info.st_size};
    if (text.n == 0) die(EXIT_INPUT, path, "empty, need text");
    void* bytes = mmap(NULL, text.n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) die_errno(EXIT_RESOURCES, path, "need address space to map it");
    close(fd);
    signal(SIGBUS, on_shrunk_text);
    text.bytes = (const char*)bytes;
    return text;
}

// Bytes of a path or name before its extension.
static int stem_length(const char* path) {
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    return dot && (!slash || dot > slash) ? (int)(dot - path) : (int)strlen(path);
}

// Makes the folder and those it lies in.
static void make_folder(const char* path) {
    char* folder = xprintf("%s/", path);
    for (char* s = folder + 1; *s; s++) {
        if (*s != '/') continue;
        *s = 0;
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
            die_errno(EXIT_RESOURCES, folder, "need a folder to write to");
        }
        *s = '/';
    }
    free(folder);
}

// Makes the file DIR/NAME of n bytes: whole and on the disk, or not at all under this name.
static void write_result(const char* dir, const char* name, const void* data, size_t n) {
    char* path = xprintf("%s/%s", dir, name);
    char* part = xprintf("%s.part", path);
    int fd = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) die_errno(EXIT_RESOURCES, part, "need a file to write to");
    write_all(fd, part, data, n);
    if (fsync(fd) != 0 || close(fd) != 0) die_errno(EXIT_RESOURCES, part, "need room on the disk");
    if (rename(part, path) != 0) die_errno(EXIT_RESOURCES, path, "need to rename its .part");
    free(part);
    free(path);
}

// A line that is written over, for a person at a terminal. Cheap enough to call for each piece: one
// call in 65,536 looks whether there is one.
static void show_progress(const char* what, double done, double all) {
    static unsigned n_calls;
    if (n_calls++ % 65536 == 0 && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\r%s %.0f %%\033[K", what, 100 * done / all);
    }
}

static void end_progress(void) {
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
}

// -------------------------------------------------------------------------------------------------
// Documents, and what of them is val

// Separates documents; of no bytes if each text is one.
typedef struct {
    char* bytes;
    size_t n;
} Separator;

// Reads the value of --split-docs. Backslashes are for what a shell makes hard to type.
static Separator read_separator(const char* s) {
    static const char letters[] = "ntr\\", meanings[] = "\n\t\r\\";
    Separator separator = {(char*)xmalloc(strlen(s) + 1, 1), 0};
    for (; *s; s++) {
        char c = *s;
        if (c == '\\') {
            const char* letter = strchr(letters, *++s);
            if (!letter || !*s) die(EXIT_USAGE, "--split-docs", "'\\%.1s', need one of ntr\\", s);
            c = meanings[letter - letters];
        }
        separator.bytes[separator.n++] = c;
    }
    return separator;
}

// Bytes of the first document, its separator included. A text that ends with a separator has no
// empty document behind it; elsewhere two separators in a row have one between them.
static size_t document_length(const char* text, size_t n, const Separator* separator) {
    const char* end =
        separator->n > 0 ? (const char*)memmem(text, n, separator->bytes, separator->n) : NULL;
    return end ? (size_t)(end - text) + separator->n : n;
}

// Where in a text val begins, if it should at `cut`: with the first document from there on, unless
// that is behind `limit`; then with the first line, or if that is too, with the first character.
// (A cut of 0 begins a document, so there is a byte before any other cut.)
static size_t move_cut(const Text* text, size_t cut, size_t limit, const Separator* separator) {
    size_t start = 0;
    while (start < cut) {
        start += document_length(text->bytes + start, text->n - start, separator);
    }
    if (start <= limit) return start;
    size_t end = limit < text->n ? limit : text->n;
    const char* newline = (const char*)memchr(text->bytes + cut - 1, '\n', end - cut + 1);
    if (newline) return (size_t)(newline - text->bytes) + 1;
    while (cut < end && ((uint8_t)text->bytes[cut] & 0xC0) == 0x80) cut++;
    return cut;
}

// Moves the last part of the train texts to val; returns how many texts val has. Where a text is
// cut in two, its parts count as two documents. fraction may be NAN, for the default.
static int split_texts(
    Text* train, int* n_train, Text* val, double fraction, const Separator* separator) {
    const size_t limit = 10 * 1000 * 1000;
    int n = *n_train;
    size_t all = 0, before = 0;
    for (int i = 0; i < n; i++) all += train[i].n;
    size_t tenth = all / 10 < limit ? all / 10 : limit;
    size_t val_bytes = isnan(fraction) ? tenth : (size_t)(fraction * (double)all);
    if (val_bytes == 0) val_bytes = 1;
    if (val_bytes >= all) die(EXIT_INPUT, train[0].path, "%zu bytes, need 2 for two parts", all);
    size_t cut = all - val_bytes;
    int k = 0;
    for (; before + train[k].n <= cut; k++) before += train[k].n;
    // Text k has the cut. Not more than half of val is given up to begin it at a good place.
    size_t at = move_cut(&train[k], cut - before, cut - before + val_bytes / 2, separator);
    int n_val = n - k;
    memcpy(val, train + k, (size_t)n_val * sizeof(Text));
    val[0].bytes += at;
    val[0].n -= at;
    train[k].n = at;
    *n_train = k + 1;
    return n_val;
}

// -------------------------------------------------------------------------------------------------
// Learning a vocabulary: always merge the most frequent pair of neighbours next
//
// Each different piece stands in the Merger once, with its count as weight. The heap holds every
// pair with the count it had when it was put there. Counts only fall after that: a pair that comes
// out with its true count is the most frequent one, and any other goes back in with its new count.
// Ties go to the pair of smaller ids, so the same text gives the same vocabulary everywhere.

enum { MAX_LEARNED = 255 };  // bytes of a token, so that llm.c's tokenizer files can hold it

typedef struct {
    const char* bytes;  // where the text has it first
    uint32_t n;
    uint32_t next;      // number of another word with the same hash, or ABSENT
    uint64_t count;
} Word;

// All different pieces of the texts.
typedef struct {
    Word* words;
    uint32_t n;
    Map index;  // hash -> number of the last word that has it
} Words;

// Counts a piece of text, which stays where it is.
static void words_count(Words* w, const char* bytes, size_t n) {
    // As FNV-1a with another factor; the upper half of the product depends on every byte.
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)bytes[i]) * 0x9E3779B97F4A7C15u;
    uint32_t key = (uint32_t)(hash >> 32), last = map_get(&w->index, key);
    for (uint32_t i = last; i != ABSENT; i = w->words[i].next) {
        if (w->words[i].n == n && memcmp(w->words[i].bytes, bytes, n) == 0) {
            w->words[i].count++;
            return;
        }
    }
    Word word = {bytes, (uint32_t)n, last, 1};
    w->words = (Word*)grow(w->words, w->n, sizeof(Word));
    w->words[w->n] = word;
    map_put(&w->index, key, w->n++);
}

// A binary heap: the smallest key comes out first, among equal keys the smallest item.
typedef struct {
    uint64_t key;   // the complement of a pair's count, so that the largest count is first
    uint32_t item;  // the pair, left id << 16 | right id
} HeapEntry;

typedef struct {
    HeapEntry* entries;  // the children of i are 2i+1 and 2i+2, and not before it
    size_t n;
} Heap;

static int is_before(HeapEntry a, HeapEntry b) {
    return a.key != b.key ? a.key < b.key : a.item < b.item;
}

// Begins at the end and moves up, parents down, as far as it is before them.
static void heap_push(Heap* heap, uint64_t key, uint32_t item) {
    HeapEntry* e = heap->entries = (HeapEntry*)grow(heap->entries, heap->n, sizeof(HeapEntry));
    HeapEntry entry = {key, item};
    size_t i = heap->n++;
    for (; i > 0 && is_before(entry, e[(i - 1) / 2]); i = (i - 1) / 2) e[i] = e[(i - 1) / 2];
    e[i] = entry;
}

// Takes the top, and lets the last entry move down into its place, always past the smaller child.
static HeapEntry heap_pop(Heap* heap) {
    HeapEntry *e = heap->entries, top = e[0], last = e[--heap->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < heap->n; i = child) {
        if (child + 1 < heap->n && is_before(e[child + 1], e[child])) child++;
        if (!is_before(e[child], last)) break;
        e[i] = e[child];
    }
    e[i] = last;
    return top;
}

// Adds merges until t has vocab_size ids, or until no pair occurs twice or all would be too long.
static void learn_merges(Tokenizer* t, const Words* w, int vocab_size) {
    Merger m;
    Heap heap = {NULL, 0};
    memset(&m, 0, sizeof(m));
    for (uint32_t i = 0; i < w->n; i++) {
        merger_add_piece(&m, t, w->words[i].bytes, w->words[i].n, w->words[i].count);
    }
    for (uint32_t queued = 0; t->vocab_size < vocab_size;) {
        // The pairs that the last merge has made, at first all pairs of bytes.
        for (; queued < m.n_pairs; queued++) {
            heap_push(&heap, ~m.pairs[queued].count, m.pairs[queued].key);
        }
        if (heap.n == 0) break;
        HeapEntry top = heap_pop(&heap);
        uint32_t key = top.item, number = map_get(&m.numbers, key);
        uint64_t count = m.pairs[number].count;
        int left, right;
        tokenizer_bytes(t, (int)(key >> 16), &left);
        tokenizer_bytes(t, (int)(key & 0xFFFF), &right);
        if (count < 2 || left + right > MAX_LEARNED) continue;
        if (top.key != ~count) heap_push(&heap, ~count, key);
        else merger_merge(&m, number, tokenizer_add(t, key));
    }
    free(heap.entries);
    free(m.tokens);
    free(m.pairs);
    free(m.numbers.slots);
}

// A vocabulary of at most vocab_size ids from the pieces of all documents.
static Tokenizer* learn_vocabulary(
    const Text* texts, int n_texts, int vocab_size, const Separator* separator) {
    Tokenizer* t = tokenizer_create();
    Words w;
    memset(&w, 0, sizeof(w));
    // (With no merge to learn there is nothing to count.)
    for (int i = 0; i < n_texts && vocab_size > t->vocab_size; i++) {
        const char *s = texts[i].bytes, *end = s + texts[i].n;
        while (s < end) {
            const char* document_end = s + document_length(s, (size_t)(end - s), separator);
            for (size_t n; s < document_end; s += n) {
                n = tokenizer_piece(t, s, (size_t)(document_end - s));
                words_count(&w, s, n);
                show_progress("counting", (double)(s - texts[i].bytes), (double)texts[i].n);
            }
        }
    }
    end_progress();
    learn_merges(t, &w, vocab_size);
    strcat(t->comment, ", Unicode " UNICODE_VERSION);  // whose classes cut the pieces
    free(w.words);
    free(w.index.slots);
    return t;
}

// -------------------------------------------------------------------------------------------------
// The floor: for each val token, the nats that the maker of the text has put into it
//
// A generated text comes with the byte that each of its maker's choices decides, and with -ln of
// the choice's probability. Summed over a token's bytes they are the token's share of the entropy
// of the text, below which no model can bring the expected loss. The choice to stop stands where a
// document ends, before the separator, and belongs to the <|endoftext|> that follows. The last
// document has none behind it, and its choice is dropped.

typedef struct {
    uint64_t offset;  // in the val text
    double nats;
} Choice;

typedef struct {
    Choice* choices;
    size_t n, next;  // next: the first one that no token has yet
    uint64_t token;  // index of the token to come
    double nats;     // of all tokens before it
    char* text;      // floor.tsv, so far
    size_t size;
    FILE* file;
} Floor;

// Reads X.floor beside X.txt: a header line, then offsets that do not fall, and nats. Returns NULL
// if there is no such file.
static Floor* read_floor(const Text* val) {
    static const char header[] = "offset\tnats\n";
    char* path = xprintf("%.*s.floor", stem_length(val->path), val->path);
    if (access(path, F_OK) != 0) {
        free(path);
        return NULL;
    }
    size_t size;
    char* file = read_file(path, &size);
    if (strncmp(file, header, strlen(header)) != 0) {
        die(EXIT_INPUT, path, "another first line, need 'offset', a tab, 'nats'");
    }
    Floor* floor = (Floor*)xmalloc(1, sizeof(Floor));
    uint64_t before = 0;
    for (char* s = file + strlen(header); s < file + size; floor->n++) {
        char *tab = s, *newline = s;
        Choice choice = {isdigit((unsigned char)*s) ? strtoull(s, &tab, 10) : 0, 0};
        if (*tab == '\t' && isdigit((unsigned char)tab[1])) choice.nats = strtod(tab + 1, &newline);
        if (newline == s || *newline != '\n' || !isfinite(choice.nats) || choice.offset < before ||
            choice.offset > val->n) {
            die(EXIT_INPUT, path, "line %zu, need an offset from %llu to %zu, a tab, nats",
                floor->n + 2, (unsigned long long)before, val->n);
        }
        floor->choices = (Choice*)grow(floor->choices, floor->n, sizeof(Choice));
        floor->choices[floor->n] = choice;
        before = choice.offset;
        s = newline + 1;
    }
    floor->file = open_memstream(&floor->text, &floor->size);
    if (!floor->file) die_errno(EXIT_RESOURCES, "floor.tsv", "need memory");
    fprintf(floor->file, "token\tnats\n");
    free(file);
    free(path);
    return floor;
}

// The next token of val owns all choices before this offset that no earlier one has.
static void floor_token(Floor* floor, uint64_t offset) {
    double nats = 0;
    for (; floor->next < floor->n && floor->choices[floor->next].offset < offset; floor->next++) {
        nats += floor->choices[floor->next].nats;
    }
    if (nats != 0) fprintf(floor->file, "%llu\t%.9g\n", (unsigned long long)floor->token, nats);
    floor->nats += nats;
    floor->token++;
}

// Writes floor.tsv; without a floor, removes the one of an earlier run.
static void write_floor(Floor* floor, const char* dir) {
    if (floor) {
        if (fclose(floor->file) != 0) die_errno(EXIT_RESOURCES, "floor.tsv", "need memory");
        write_result(dir, "floor.tsv", floor->text, floor->size);
        printf("%-10s %.6f nats a val token: %s/floor.tsv\n", "floor",
            floor->nats / (double)floor->token, dir);
        free(floor->text);
        free(floor->choices);
        free(floor);
        return;
    }
    char* path = xprintf("%s/floor.tsv", dir);
    if (unlink(path) != 0 && errno != ENOENT) {
        die_errno(EXIT_RESOURCES, path, "need to remove this older floor");
    }
    free(path);
}

// -------------------------------------------------------------------------------------------------
// Streams of tokens: documents to shards

// Train or val.
typedef struct {
    ShardWriter writer;
    uint64_t n_documents, n_bytes;  // counted from the tokens
} Part;

typedef struct {
    const Tokenizer* t;
    const Separator* separator;
    Part train, val;
    uint64_t val_left;  // tokens that still go to val before train gets any
    uint16_t* ids;      // tokens that are in no shard yet
    size_t n_ids;
} Stream;

enum { BLOCK = 1 << 16 };  // tokens collected before they are written

static Stream stream_open(const Tokenizer* t, const Separator* separator, const char* out) {
    Stream stream;
    memset(&stream, 0, sizeof(stream));
    stream.t = t;
    stream.separator = separator;
    stream.ids = (uint16_t*)xmalloc(BLOCK + 1 + MAX_PIECE, sizeof(uint16_t));
    shard_writer_open(&stream.train.writer, out, "train", 0);
    shard_writer_open(&stream.val.writer, out, "val", 0);
    return stream;
}

static void part_put(Part* part, const Tokenizer* t, const uint16_t* ids, size_t n) {
    shard_writer_put(&part->writer, ids, n);
    for (size_t i = 0; i < n; i++) {
        part->n_bytes += t->start[ids[i] + 1] - t->start[ids[i]];
        part->n_documents += ids[i] == t->eot;
    }
}

// Writes the tokens collected so far to the part, or parts, that they belong to.
static void stream_flush(Stream* stream) {
    size_t n_val = stream->n_ids < stream->val_left ? stream->n_ids : (size_t)stream->val_left;
    part_put(&stream->val, stream->t, stream->ids, n_val);
    part_put(&stream->train, stream->t, stream->ids + n_val, stream->n_ids - n_val);
    stream->val_left -= n_val;
    stream->n_ids = 0;
}

// Encodes n bytes at `at`, a document of this text. floor may be NULL.
static void stream_document(Stream* stream, const Text* text, size_t at, size_t n, Floor* floor) {
    const Tokenizer* t = stream->t;
    const Separator* separator = stream->separator;
    size_t end = at + n, words_end = end;  // without the separator
    if (separator->n > 0 && n >= separator->n &&
        memcmp(text->bytes + end - separator->n, separator->bytes, separator->n) == 0) {
        words_end -= separator->n;
    }
    // Choices from words_end on are left to the <|endoftext|> of the next document.
    if (floor) floor_token(floor, at);
    stream->ids[stream->n_ids++] = (uint16_t)t->eot;
    while (at < end) {
        size_t length = tokenizer_piece(t, text->bytes + at, end - at), token_end = at;
        uint16_t* ids = stream->ids + stream->n_ids;
        size_t n_ids = encode_piece(t, text->bytes + at, length, ids);
        for (size_t i = 0; floor && i < n_ids; i++) {
            token_end += t->start[ids[i] + 1] - t->start[ids[i]];
            floor_token(floor, token_end < words_end ? token_end : words_end);
        }
        at += length;
        stream->n_ids += n_ids;
        if (stream->n_ids >= BLOCK) stream_flush(stream);
        show_progress("encoding", (double)at, (double)text->n);
    }
}

static void stream_text(Stream* stream, const Text* text, Floor* floor) {
    for (size_t at = 0, n; at < text->n; at += n) {
        n = document_length(text->bytes + at, text->n - at, stream->separator);
        stream_document(stream, text, at, n, floor);
    }
}

// -------------------------------------------------------------------------------------------------
// Evaluation sets: lines of label, context and four endings, to the format that eval.h describes
//
// A context is the beginning of a document, so <|endoftext|> comes first, as in train shards; in
// llm.c's HellaSwag it does not. An ending goes on from the context after a space.

enum { N_ENDINGS = 4, N_FIELDS = 2 + N_ENDINGS };

// The file to be, in units of its ids.
typedef struct {
    uint16_t* words;
    size_t n;
} WordList;

static void put_word(WordList* list, size_t word) {
    list->words = (uint16_t*)grow(list->words, list->n, sizeof(uint16_t));
    list->words[list->n++] = (uint16_t)word;
}

// A text's tokens, behind their number; a document begins with <|endoftext|>.
static void put_text(WordList* list, const Tokenizer* t, const char* s, size_t n, int document) {
    uint16_t* ids = (uint16_t*)xmalloc(n, sizeof(uint16_t));
    size_t n_ids = tokenizer_encode(t, s, n, ids);
    put_word(list, n_ids + (size_t)document);
    if (document) put_word(list, (size_t)t->eot);
    for (size_t i = 0; i < n_ids; i++) put_word(list, ids[i]);
    free(ids);
}

// The fields of a line, of which there must be six, none of them empty; fields[6] is where the next
// line begins. Returns whether all is well.
static int cut_fields(char* s, char* newline, char* fields[N_FIELDS + 1]) {
    int n = 1;
    fields[0] = s;
    for (; s < newline; s++) {
        if (*s == '\t' && n == N_FIELDS) return 0;
        if (*s == '\t') fields[n++] = s + 1;
    }
    fields[n] = newline + 1;
    for (int i = 0; i < n; i++) {
        if (fields[i + 1] - fields[i] < 2) return 0;
    }
    int has_label = fields[1] == fields[0] + 2 && *fields[0] >= '0' && *fields[0] < '0' + N_ENDINGS;
    return n == N_FIELDS && has_label && newline[-1] != '\r';
}

static void put_example(WordList* list, const Tokenizer* t, char* const* fields, int index) {
    put_word(list, EVAL_START);
    put_word(list, 0);  // its bytes, known at its end
    put_word(list, (size_t)index);
    put_word(list, (size_t)(*fields[0] - '0'));
    put_word(list, N_ENDINGS);
    put_text(list, t, fields[1], (size_t)(fields[2] - fields[1]) - 1, 1);
    for (int i = 2; i < N_FIELDS; i++) {
        // Where an ending has no space in front, the tab becomes one.
        char* ending = fields[i];
        if (*ending != ' ') *--ending = ' ';
        put_text(list, t, ending, (size_t)(fields[i + 1] - ending) - 1, 0);
    }
}

// The whole evaluation set of a file of questions.
static WordList make_eval(const Tokenizer* t, const char* path) {
    size_t size, longest = 0;
    char *file = read_file(path, &size), *fields[N_FIELDS + 1];
    int32_t n_examples = 0;
    WordList list = {NULL, 0};
    for (int i = 0; i < 512; i++) put_word(&list, 0);
    for (char* s = file; s < file + size; s = fields[N_FIELDS]) {
        char* newline = (char*)memchr(s, '\n', (size_t)(file + size - s));
        if (!newline || !cut_fields(s, newline, fields) || n_examples > 65535) {
            die(EXIT_INPUT, path, "line %d, need label (0 to 3), context and 4 endings between "
                "tabs, at most 65536 lines", n_examples + 1);
        }
        size_t start = list.n;
        put_example(&list, t, fields, n_examples++);
        size_t bytes = 2 * (list.n - start);
        if (bytes > 65535) die(EXIT_INPUT, path, "line %d, need < 32768 tokens", n_examples);
        list.words[start + 1] = (uint16_t)bytes;
        if (bytes > longest) longest = bytes;
    }
    if (n_examples == 0) die(EXIT_INPUT, path, "empty, need lines");
    int32_t header[4] = {EVAL_MAGIC, EVAL_VERSION, n_examples, (int32_t)longest};
    memcpy(list.words, header, sizeof(header));
    free(file);
    return list;
}

// The name of the result, NAME.bin for DIR/NAME.tsv.
static char* eval_name(const char* path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!strncmp(name, "train_", 6) || !strncmp(name, "val_", 4)) {
        die(EXIT_USAGE, path, "result would look like a shard, need another name");
    }
    return xprintf("%.*s.bin", stem_length(name), name);
}

// -------------------------------------------------------------------------------------------------
// The program

// The vocabulary that is given; where there are only questions, that of the folder; or a new one.
static Tokenizer* get_vocabulary(
    const PrepareOptions* o, const Text* train, int n_train, const Separator* separator) {
    double start = now_seconds();
    char* there = xprintf("%s/vocab.bpe", o->out);
    const char* path = o->bpe[0] ? o->bpe : n_train == 0 ? there : NULL;
    Tokenizer* t =
        path ? tokenizer_load(path) : learn_vocabulary(train, n_train, (int)o->vocab, separator);
    printf("%-10s %d ids, ", "vocabulary", t->vocab_size);
    if (path) printf("from %s\n", path);
    else printf("%lld asked for, learned in %.2f s\n", o->vocab, now_seconds() - start);
    free(there);
    return t;
}

// Removes what was written of a part that is not to be.
static void part_discard(const Part* part) {
    for (int i = 0; i < part->writer.n_shards; i++) unlink(shard_path(&part->writer, i, ".part"));
}

// Gives the shards of a part their names, and reports it.
static void part_close(Part* part) {
    ShardWriter* w = &part->writer;
    shard_writer_close(w);
    printf("%-10s %llu tokens, %llu documents, %.3f bytes a token: %s/%s_*.bin (%d)\n", w->prefix,
        (unsigned long long)w->n_tokens, (unsigned long long)part->n_documents,
        (double)part->n_bytes / (double)w->n_tokens, w->dir, w->prefix, w->n_shards);
}

// The first val_tokens tokens of the train texts go to val, then all of the val texts. floor may be
// NULL.
static void stream_all(Stream* stream, uint64_t val_tokens, const Text* train, int n_train,
    const Text* val, int n_val, Floor* floor) {
    double start = now_seconds();
    stream->val_left = val_tokens;
    for (int i = 0; i < n_train; i++) stream_text(stream, &train[i], NULL);
    stream_flush(stream);
    if (stream->train.writer.n_tokens == 0) {
        part_discard(&stream->val);
        die(EXIT_USAGE, "--val-tokens", "%llu, need fewer than the %llu tokens there are",
            (unsigned long long)val_tokens, (unsigned long long)stream->val.writer.n_tokens);
    }
    stream->val_left = UINT64_MAX;
    for (int i = 0; i < n_val; i++) stream_text(stream, &val[i], floor);
    stream_flush(stream);
    end_progress();
    double seconds = now_seconds() - start;
    printf("%-10s %.2f s, %.1f MB/s\n", "encoded", seconds,
        1e-6 * (double)(stream->train.n_bytes + stream->val.n_bytes) / seconds);
}

// Everything that can be refused is looked at before anything is written.
static void prepare(const PrepareOptions* o, Text* train, int n_train) {
    Separator separator = read_separator(o->split_docs);
    char* eval_path = o->eval[0] ? eval_name(o->eval) : NULL;
    Text* val = (Text*)xmalloc((size_t)n_train + 1, sizeof(Text));
    int n_val = 0;
    Floor* floor = NULL;
    if (o->val_text[0]) {
        val[n_val++] = map_text(o->val_text);
        floor = read_floor(&val[0]);
    } else if (n_train > 0 && o->val_tokens == AUTO) {
        n_val = split_texts(train, &n_train, val, o->val_fraction, &separator);
    }
    Tokenizer* t = get_vocabulary(o, train, n_train, &separator);
    WordList eval = {NULL, 0};
    if (eval_path) eval = make_eval(t, o->eval);

    make_folder(o->out);
    if (n_train > 0) {
        size_t size;
        char* merges = tokenizer_merges(t, &size);
        Stream stream = stream_open(t, &separator, o->out);
        uint64_t val_tokens = o->val_tokens == AUTO ? 0 : (uint64_t)o->val_tokens;
        stream_all(&stream, val_tokens, train, n_train, val, n_val, floor);
        part_close(&stream.train);
        part_close(&stream.val);
        write_floor(floor, o->out);
        write_result(o->out, "vocab.bpe", merges, size);
        free(stream.ids);
        free(merges);
    }
    if (eval_path) {
        write_result(o->out, eval_path, eval.words, 2 * eval.n);
        printf("%-10s %s/%s\n", "eval", o->out, eval_path);
    }
    tokenizer_free(t);
    free(eval.words);
    free(eval_path);
    free(separator.bytes);
    free(val);
}

int main(int argc, char** argv) {
    PrepareOptions o;
    OptionTable table = {OPTIONS, N_OPTIONS, &o, {0}};
    int n_texts = options_parse(&table, argc, argv);
    if (o.help) {
        print_help(&table);
        return 0;
    }
    check_options(&o, &table, n_texts);
    Text* texts = (Text*)xmalloc((size_t)n_texts + 1, sizeof(Text));
    for (int i = 0; i < n_texts; i++) texts[i] = map_text(argv[i]);
    prepare(&o, texts, n_texts);
    free(texts);
    return 0;
}
