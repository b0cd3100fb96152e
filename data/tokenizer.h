// tokenizer.h: byte-level BPE by GPT-2's rules: vocabularies, encoding, decoding.
//
// Text is cut into pieces: a word with the space before it, a number, signs, or white space. The
// bytes of a piece are its first tokens; then neighbours merge, always the pair whose merge was
// learned first, until no pair has one. The merges are the whole vocabulary:
//     ids 0 .. 255   the single bytes, printable ones first, as in GPT-2's published files
//     ids 256 ..     one a merge, in the order learned: a pair's rank is the id that it makes
//     the last id    <|endoftext|>, which no text is ever encoded to
// Any bytes survive the round trip: one that is not part of valid UTF-8 is a sign of its own.
//
// No two tokens have the same bytes. Learning never makes such twins: while both ends of a string
// stay token boundaries, what happens between them does not depend on its surroundings, so when one
// occurrence of it has become one token, all have. Files that break the rule are refused.
// Refused: regular expressions (they recurse on long runs), other pieces, more than 65,535 ids.
#ifndef TOKENIZER_H
#define TOKENIZER_H
#include "tokens.h"
enum { SIGN, LETTER, NUMBER, SPACE };  // classes of characters
#include "unicode_ranges.inc"

enum {
    MAX_VOCAB = 65535,     // ids are uint16_t, and 65535 begins the examples of evaluation files
    MAX_PIECE = 1 << 20,   // bytes; a longer piece is cut, which bounds memory
    PRINTABLE_BYTES = 188  // bytes that are printable characters of Latin-1: the first ids
};
#define ABSENT UINT32_MAX  // no value, no place

// -------------------------------------------------------------------------------------------------
// Containers: an array that grows, a map of integers

// The array of n elements, with room for one more: it doubles whenever n is a power of two.
static inline void* grow(void* array, size_t n, size_t size) {
    if (n & (n - 1)) return array;
    size_t room = n > 0 ? 2 * n : 1;
    void* larger = room <= SIZE_MAX / size ? realloc(array, room * size) : NULL;
    if (!larger) die(EXIT_RESOURCES, "memory", "none left, need %zu x %zu bytes", room, size);
    return larger;
}

// Open addressing, at most half full. A map whose bytes are all zero is empty.
typedef struct {
    uint64_t* slots;    // key << 32 | value + 1; an empty slot is 0, and so holds the value ABSENT
    size_t size, used;  // size is a power of two
} Map;

static inline uint64_t* map_slot(const Map* map, uint32_t key) {
    // The factor, 2^64 / golden ratio, spreads neighbouring keys over the product's upper half.
    size_t i = key * 0x9E3779B97F4A7C15u >> 32, mask = map->size - 1;
    while (map->slots[i & mask] && map->slots[i & mask] >> 32 != key) i++;
    return &map->slots[i & mask];
}

static inline uint32_t map_get(const Map* map, uint32_t key) {
    return map->size ? (uint32_t)*map_slot(map, key) - 1 : ABSENT;
}

static inline void map_put(Map* map, uint32_t key, uint32_t value) {  // the key is new
    if (2 * map->used >= map->size) {
        Map old = *map;
        map->size = old.size ? 2 * old.size : 64;
        map->slots = (uint64_t*)xmalloc(map->size, sizeof(uint64_t));
        for (size_t i = 0; i < old.size; i++) {
            if (old.slots[i]) *map_slot(map, (uint32_t)(old.slots[i] >> 32)) = old.slots[i];
        }
        free(old.slots);
    }
    *map_slot(map, key) = (uint64_t)key << 32 | (value + 1);
    map->used++;
}

// -------------------------------------------------------------------------------------------------
// The vocabulary

typedef struct {
    int vocab_size, eot;            // 256 + merges + 1; the id of <|endoftext|>, vocab_size - 1
    Map merges;                     // left id << 16 | right id -> id
    uint16_t halves[MAX_VOCAB][2];  // by id: the left and the right of its merge
    char* bytes;                    // of all tokens, one behind the other
    size_t start[MAX_VOCAB + 1];    // by id: where its bytes start; they end where the next id's do
    uint16_t id_of[256];            // by byte
    uint8_t* classes;               // by code point
    char comment[128];              // the first line of vocab.bpe
} Tokenizer;

// A token's bytes; none for <|endoftext|>.
static inline const char* tokenizer_bytes(const Tokenizer* t, int id, int* length) {
    *length = (int)(t->start[id + 1] - t->start[id]);
    return t->bytes + t->start[id];
}

// Single bytes and <|endoftext|>, without a merge.
static inline Tokenizer* tokenizer_create(void) {
    Tokenizer* t = (Tokenizer*)xmalloc(1, sizeof(Tokenizer));
    t->classes = (uint8_t*)xmalloc(0x110000, 1);
    for (size_t i = 0; i < sizeof(unicode_ranges) / sizeof(unicode_ranges[0]); i++) {
        const uint32_t* row = unicode_ranges[i];  // class, first, last
        memset(t->classes + row[1], (int)row[0], row[2] - row[1] + 1);
    }
    t->bytes = (char*)xmalloc(256, 1);
    for (int b = 0, printable = 0, other = PRINTABLE_BYTES; b < 256; b++) {
        int is_printable = (b > 0x20 && b < 0x7F) || (b > 0xA0 && b != 0xAD);
        int id = is_printable ? printable++ : other++;
        t->id_of[b] = (uint16_t)id;
        t->bytes[id] = (char)b;
        t->start[id] = (size_t)id;
    }
    t->eot = 256;
    t->vocab_size = 257;
    t->start[256] = t->start[257] = 256;
    strcpy(t->comment, "#version: 0.2");
    return t;
}

static inline void tokenizer_free(Tokenizer* t) {
    free(t->merges.slots);
    free(t->bytes);
    free(t->classes);
    free(t);
}

// One merge more, of left id << 16 | right id: it takes the id of <|endoftext|>, which moves on.
static inline uint32_t tokenizer_add(Tokenizer* t, uint32_t pair) {
    int id = t->eot++;
    size_t end = t->start[id];
    for (int h = 0; h < 2; h++) {
        int half = t->halves[id][h] = (uint16_t)(h == 0 ? pair >> 16 : pair);
        for (size_t i = t->start[half]; i < t->start[half + 1]; i++, end++) {
            t->bytes = (char*)grow(t->bytes, end, 1);
            t->bytes[end] = t->bytes[i];
        }
    }
    t->vocab_size++;
    t->start[id + 1] = t->start[id + 2] = end;
    map_put(&t->merges, pair, (uint32_t)id);
    return (uint32_t)id;
}

// -------------------------------------------------------------------------------------------------
// Pieces: GPT-2's split pattern as a scanner,
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

// Bytes of the character at s, where n >= 1 are left, and its class. What Unicode forbids (stray or
// missing continuations, overlong forms, surrogates, codes above 10FFFF) makes one byte a sign.
static inline size_t character_at(const Tokenizer* t, const uint8_t* s, size_t n, int* class_out) {
    *class_out = s[0] < 0x80 ? t->classes[s[0]] : (int)SIGN;
    size_t length = s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] < 0xC2 || s[0] > 0xF4 || length > n) return 1;
    uint32_t code = s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) return 1;
        code = code << 6 | (s[i] & 0x3Fu);
    }
    int overlong = code < (length == 2 ? 0x80u : length == 3 ? 0x800u : 0x10000u);
    if (overlong || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return 1;
    *class_out = t->classes[code];
    return length;
}

// Bytes of the first piece of a text of n >= 1 bytes.
static inline size_t tokenizer_piece(const Tokenizer* t, const char* text, size_t n) {
    const uint8_t* s = (const uint8_t*)text;
    if (s[0] == '\'' && n > 1) {
        if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
        if (n > 2 && s[2] == 'e' && (s[1] == 'r' || s[1] == 'v')) return 3;
        if (n > 2 && s[2] == 'l' && s[1] == 'l') return 3;
    }
    // A space belongs to whatever run follows it.
    size_t end = s[0] == ' ' && n > 1, last = 0, length;
    int run, next;
    character_at(t, s + end, n - end, &run);
    for (; end < n; end += length) {
        length = character_at(t, s + end, n - end, &next);
        if (next != run || end + length > MAX_PIECE) break;
        last = end;
    }
    // White space before text leaves its last character to the next piece.
    return run == SPACE && end < n && last > 0 ? last : end;
}

// -------------------------------------------------------------------------------------------------
// Merging everywhere at once: how vocabularies are learned (in prepare.c) and long pieces encoded
//
// Pieces lie one behind the other, a place for each byte. A token stands at the place of its first
// byte and knows its neighbours. Tokens that begin the same pair form a list, in ascending order: a
// merge walks one list, takes tokens out of the lists they no longer belong to and appends them to
// others. So all merges together cost O(bytes), however long the pieces are.

typedef struct {
    uint64_t weight;          // how often the text has this piece
    uint32_t id;
    uint32_t prev, next;      // places of the neighbours in the piece, or ABSENT
    uint32_t earlier, later;  // places of the neighbours in the list of its pair, or ABSENT
} Token;

typedef struct {
    uint64_t count;             // sum of the weights of its tokens
    uint32_t key, first, last;  // left id << 16 | right id; the ends of its list
} Pair;

typedef struct {
    Token* tokens;
    Pair* pairs;  // in the order in which they were first met
    uint32_t n_tokens, n_pairs;
    Map numbers;  // key -> number of the pair
} Merger;

// The pair of the token at this place and the next one.
static inline Pair* merger_pair(Merger* m, uint32_t place) {
    const Token* token = &m->tokens[place];
    uint32_t key = token->id << 16 | m->tokens[token->next].id, number = map_get(&m->numbers, key);
    if (number == ABSENT) {
        Pair pair = {0, key, ABSENT, ABSENT};
        number = m->n_pairs++;
        m->pairs = (Pair*)grow(m->pairs, number, sizeof(Pair));
        m->pairs[number] = pair;
        map_put(&m->numbers, key, number);
    }
    return &m->pairs[number];
}

static inline void merger_link(Merger* m, uint32_t place) {  // at the end of its pair's list
    if (place == ABSENT || m->tokens[place].next == ABSENT) return;
    Token* token = &m->tokens[place];
    Pair* pair = merger_pair(m, place);
    token->earlier = pair->last;
    token->later = ABSENT;
    *(pair->last == ABSENT ? &pair->first : &m->tokens[pair->last].later) = place;
    pair->last = place;
    pair->count += token->weight;
}

static inline void merger_unlink(Merger* m, uint32_t place) {  // from its pair's list
    if (place == ABSENT || m->tokens[place].next == ABSENT) return;
    const Token* token = &m->tokens[place];
    Pair* pair = merger_pair(m, place);
    *(token->earlier == ABSENT ? &pair->first : &m->tokens[token->earlier].later) = token->later;
    *(token->later == ABSENT ? &pair->last : &m->tokens[token->later].earlier) = token->earlier;
    pair->count -= token->weight;
}

static inline void merger_add_piece(
    Merger* m, const Tokenizer* t, const char* bytes, size_t n, uint64_t weight) {
    if (n >= ABSENT - m->n_tokens) die(EXIT_RESOURCES, "text", "over 4 GiB of different pieces");
    for (size_t i = 0; i < n; i++) {
        uint32_t place = m->n_tokens++, prev = i > 0 ? place - 1 : ABSENT;
        Token token = {weight, t->id_of[(uint8_t)bytes[i]], prev, ABSENT, ABSENT, ABSENT};
        m->tokens = (Token*)grow(m->tokens, place, sizeof(Token));
        m->tokens[place] = token;
        if (i > 0) m->tokens[prev].next = place;
        merger_link(m, prev);
    }
}

// Makes `id` of a pair wherever it is, from the left: in a run of one token, places one and two
// merge, three and four, and so on.
static inline void merger_merge(Merger* m, uint32_t number, uint32_t id) {
    for (uint32_t place; (place = m->pairs[number].first) != ABSENT;) {
        Token *left = &m->tokens[place], *right = &m->tokens[left->next];
        merger_unlink(m, left->prev);
        merger_unlink(m, place);
        merger_unlink(m, left->next);
        left->id = id;
        left->next = right->next;
        if (left->next != ABSENT) m->tokens[left->next].prev = place;
        merger_link(m, left->prev);
        merger_link(m, place);
    }
}

// -------------------------------------------------------------------------------------------------
// Encoding

// A long piece: the merges of its pairs from the lowest rank up, each wherever it applies. A merge
// makes pairs of higher ranks only, so one walk over the ranks meets them all.
static inline size_t encode_long(const Tokenizer* t, const char* s, size_t n, uint16_t* ids) {
    char is_due[MAX_VOCAB] = {0}, *due = is_due;  // by rank: whether a pair of the piece has it
    Merger m;
    memset(&m, 0, sizeof(m));
    merger_add_piece(&m, t, s, n, 1);
    for (uint32_t marked = 0; due; due = (char*)memchr(due, 1, is_due + MAX_VOCAB - due)) {
        const uint16_t* halves = t->halves[due - is_due];
        uint32_t number = map_get(&m.numbers, (uint32_t)halves[0] << 16 | halves[1]);
        if (*due) merger_merge(&m, number, (uint32_t)(due - is_due));
        *due = 0;
        for (; marked < m.n_pairs; marked++) {
            uint32_t rank = map_get(&t->merges, m.pairs[marked].key);
            if (rank != ABSENT) is_due[rank] = 1;
        }
    }
    size_t count = 0;
    for (uint32_t i = 0; i != ABSENT; i = m.tokens[i].next) ids[count++] = (uint16_t)m.tokens[i].id;
    free(m.tokens);
    free(m.pairs);
    free(m.numbers.slots);
    return count;
}

// Ids of one piece; there is room for n of them. Returns how many. A word is merged just as the
// rule says: look at every pair, merge the first one of the lowest rank, repeat. O(n^2).
static inline size_t encode_piece(const Tokenizer* t, const char* s, size_t n, uint16_t* ids) {
    if (n > 64) return encode_long(t, s, n, ids);  // about where scans become the slower way
    for (size_t i = 0; i < n; i++) ids[i] = t->id_of[(uint8_t)s[i]];
    for (; n > 1; n--) {
        uint64_t lowest = UINT64_MAX;  // rank << 32 | place
        for (size_t i = 0; i + 1 < n; i++) {
            uint64_t rank = map_get(&t->merges, (uint32_t)ids[i] << 16 | ids[i + 1]);
            if ((rank << 32 | i) < lowest) lowest = rank << 32 | i;
        }
        if (lowest >> 32 == ABSENT) break;
        size_t place = (uint32_t)lowest;
        ids[place] = (uint16_t)(lowest >> 32);
        memmove(&ids[place + 1], &ids[place + 2], (n - place - 2) * sizeof(uint16_t));
    }
    return n;
}

// Ids of a text; there is room for n. Returns how many. <|endoftext|> in it is text like any other.
static inline size_t tokenizer_encode(const Tokenizer* t, const char* s, size_t n, uint16_t* ids) {
    size_t count = 0;
    for (size_t at = 0, length; at < n; at += length) {
        length = tokenizer_piece(t, s + at, n - at);
        count += encode_piece(t, s + at, length, ids + count);
    }
    return count;
}

// -------------------------------------------------------------------------------------------------
// Files: vocab.bpe (the hub's merges.txt), the hub's vocab.json, llm.c's tokenizer .bin
//
// In text files a symbol stands for each byte: the printable character of Latin-1 that it is, or
// U+0100 + k for the k-th of the others (a space, byte 32, is U+0120).
enum { MERGES_TXT, VOCAB_JSON };

// Writes a token at s and returns the place behind it.
static inline char* print_token(char* s, const Tokenizer* t, int id, int kind) {
    for (size_t i = t->start[id]; i < t->start[id + 1]; i++) {
        int byte = (uint8_t)t->bytes[i], other = t->id_of[byte] - PRINTABLE_BYTES;
        int code = other < 0 ? byte : 0x100 + other;
        if (kind == VOCAB_JSON && (code == '"' || code == '\\')) *s++ = '\\';
        if (code < 0x80) *s++ = (char)code;
        else if (kind == VOCAB_JSON) s += sprintf(s, "\\u%04x", code);
        else s += sprintf(s, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 0x3F));
    }
    return s;
}

// The text of vocab.bpe, in fresh memory: a comment, then "LEFT RIGHT" for each merge.
static inline char* tokenizer_merges(const Tokenizer* t, size_t* size) {
    size_t room = 2 * t->start[t->eot] + 2 * (size_t)t->vocab_size + sizeof(t->comment);
    char *text = (char*)xmalloc(room, 1), *s = text + sprintf(text, "%s\n", t->comment);
    for (int half = 2 * 256; half < 2 * t->eot; half++) {
        s = print_token(s, t, t->halves[half / 2][half % 2], MERGES_TXT);
        *s++ = half % 2 == 0 ? ' ' : '\n';
    }
    *size = (size_t)(s - text);
    return text;
}

// The text of vocab.json, in fresh memory: {"token": id, ...}, to the byte as Python writes it.
static inline char* tokenizer_vocab_json(const Tokenizer* t, size_t* size) {
    size_t room = 6 * t->start[t->eot] + 14 * (size_t)t->vocab_size + 32;
    char *text = (char*)xmalloc(room, 1), *s = text;
    for (int id = 0; id < t->eot; id++) {
        s += sprintf(s, id == 0 ? "{\"" : ", \"");
        s = print_token(s, t, id, VOCAB_JSON);
        s += sprintf(s, "\": %d", id);
    }
    s += sprintf(s, ", \"<|endoftext|>\": %d}", t->eot);
    *size = (size_t)(s - text);
    return text;
}

// Adds the token that has these bytes, if the merges so far leave exactly two tokens of them, cut
// behind `left` bytes (0: anywhere). Else it would be a twin, or a token that nothing encodes to.
static inline int add_token(Tokenizer* t, const char* bytes, size_t n, size_t left) {
    uint16_t* ids = (uint16_t*)xmalloc(n + 1, sizeof(uint16_t));
    int fits = encode_piece(t, bytes, n, ids) == 2 && t->vocab_size < MAX_VOCAB;
    if (left > 0 && left != t->start[ids[0] + 1] - t->start[ids[0]]) fits = 0;
    if (fits) tokenizer_add(t, (uint32_t)ids[0] << 16 | ids[1]);
    free(ids);
    return fits;
}

// The byte whose symbol is at *s, which then moves behind it; -1 if none is.
static inline int read_symbol(const Tokenizer* t, char** s) {
    const uint8_t* p = (const uint8_t*)*s;
    int is_long = p[0] >= 0xC2 && p[0] <= 0xC5 && (p[1] & 0xC0) == 0x80;
    int code = is_long ? (p[0] & 0x1F) << 6 | (p[1] & 0x3F) : p[0];
    if (!is_long && code >= 0x80) return -1;
    int id = code < 0x100 ? t->id_of[code] : code - 0x100 + PRINTABLE_BYTES;
    if (id > 255 || (id < PRINTABLE_BYTES) != (code < 0x100)) return -1;
    *s += 1 + is_long;
    return (uint8_t)t->bytes[id];
}

// s is the whole file and has a zero byte behind it, which is no symbol and so ends every line.
// A line's bytes are written over its text, which is never shorter.
static inline void load_merges(Tokenizer* t, const char* path, char* s, size_t size) {
    char *end = s + size, *newline = (char*)memchr(s, '\n', size);
    if (strncmp(s, "#version: ", 10) || !newline || newline - s >= (int)sizeof(t->comment)) {
        die(EXIT_INPUT, path, "begins with something else, need a first line '#version: 0.2'");
    }
    snprintf(t->comment, sizeof(t->comment), "%.*s", (int)(newline - s), s);
    s = newline + 1;
    for (int line = 2; s < end; line++, s++) {
        char* bytes = s;
        size_t n = 0, left = 0;
        for (int byte = 0; *s != '\n' && byte >= 0;) {
            if (*s == ' ' && n > 0 && left == 0) left = n, s++;
            else if ((byte = read_symbol(t, &s)) >= 0) bytes[n++] = (char)byte;
        }
        if (*s != '\n' || left == 0 || !add_token(t, bytes, n, left)) {
            die(EXIT_INPUT, path, "line %d, need 'LEFT RIGHT', two tokens from above that make a "
                "new one, at most %d times", line, MAX_VOCAB - 257);
        }
    }
}

static inline void load_binary(Tokenizer* t, const char* path, const char* s, size_t size) {
    const char* end = s + size;
    const int32_t* header = (const int32_t*)s;
    int version = header[1], n = header[2], eot = version == 1 ? 50256 : header[3];
    if (version < 1 || version > 2 || n < 257 || n > MAX_VOCAB || eot != n - 1) {
        die(EXIT_INPUT, path, "header %d %d %d, need 1 or 2, 257..65535, n - 1", version, n, eot);
    }
    s += 1024;
    for (int id = 0; id < n; id++) {
        size_t length = s < end ? (uint8_t)*s++ : 0;
        int ok = length <= (size_t)(end - s);
        if (ok && id < 256) ok = length == 1 && *s == t->bytes[id];
        if (ok && id == eot) ok = length == 13 && memcmp(s, "<|endoftext|>", 13) == 0;
        if (ok && id >= 256 && id < eot) ok = add_token(t, s, length, 0);
        if (!ok) die(EXIT_INPUT, path, "token %d, need GPT-2's bytes, then pairs of tokens", id);
        s += length;
    }
    if (s != end) die(EXIT_INPUT, path, "%zu bytes behind the last token", (size_t)(end - s));
}

// Reads a vocabulary of either kind; it is one whole, or the program ends with code 3.
static inline Tokenizer* tokenizer_load(const char* path) {
    size_t size;
    char* file = read_file(path, &size);
    Tokenizer* t = tokenizer_create();
    if (size >= 1024 && *(int32_t*)file == 20240328) load_binary(t, path, file, size);
    else load_merges(t, path, file, size);
    free(file);
    return t;
}

#endif
