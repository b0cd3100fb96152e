// tensors.h: files of named tensors, read and described.
//
// safetensors is the hub's format, little-endian:
//     uint64     bytes of the header, 100,000,000 at most
//     header     JSON, {"NAME":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},..} with texts
//                about the file under __metadata__; spaces may fill it up
//     numbers    of all tensors, without gaps; data_offsets count from here
// Files are not trusted: every size, product and place is checked before it is used, and tensors
// must fill the file to its last byte. What is wrong ends the program with code 3 and one line.
#ifndef TENSORS_H
#define TENSORS_H
#include "tokens.h"
#include <math.h>

// -------------------------------------------------------------------------------------------------
// JSON, as much as models need: a cursor that takes what it expects or ends the program

typedef struct {
    const char *at, *end;  // what is still to be read
    const char* path;      // the file it is from, for messages
} Json;

__attribute__((noreturn)) static inline void json_die(const Json* j, const char* need) {
    int left = j->end - j->at < 16 ? (int)(j->end - j->at) : 16;  // enough to find the place
    if (left == 0) die(EXIT_INPUT, j->path, "found the end of its JSON, need %s", need);
    die(EXIT_INPUT, j->path, "found '%.*s' in its JSON, need %s", left, j->at, need);
}

// Nothing else is white space to JSON.
static inline void json_space(Json* j) {
    for (; j->at < j->end; j->at++) {
        char c = *j->at;
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    }
}

static inline int json_take(Json* j, char c) {  // 1: the next character is c, and is taken
    json_space(j);
    if (j->at >= j->end || *j->at != c) return 0;
    j->at++;
    return 1;
}

// The next character must be c.
static inline void json_need(Json* j, char c) {
    char need[4] = {'\'', c, '\'', 0};
    if (!json_take(j, c)) json_die(j, need);
}

// After an opening bracket: 1 while another item follows, its comma taken; n counts the items.
static inline int json_next(Json* j, char close, int* n) {
    if (json_take(j, close)) return 0;
    if ((*n)++ > 0) json_need(j, ',');
    return 1;
}

// What follows a whole value would be read by nobody: it must not be there.
static inline void json_end(Json* j) {
    json_space(j);
    if (j->at < j->end) json_die(j, "nothing behind its last bracket");
}

// A string's bytes as they are written, escapes and all. Returns their number; what does not fit
// into size bytes (with the zero that ends it) is left out. Without a size it is skipped.
static inline size_t json_string(Json* j, char* out, size_t size) {
    size_t n = 0;
    json_need(j, '"');
    for (int escaped = 0; j->at < j->end && (escaped || *j->at != '"'); j->at++) {
        if ((unsigned char)*j->at < ' ') json_die(j, "a string without control characters");
        escaped = !escaped && *j->at == '\\';
        if (n + 1 < size) out[n] = *j->at;  // a place is left for the zero
        n++;
    }
    if (size > 0) out[n < size ? n : size - 1] = 0;
    json_need(j, '"');
    return n;
}

// A whole number below 2^64 - 6. A sign, a fraction or an exponent is not one.
static inline uint64_t json_count(Json* j) {
    uint64_t n = 0;
    json_space(j);
    if (j->at >= j->end || *j->at < '0' || *j->at > '9') json_die(j, "a whole number");
    for (; j->at < j->end && *j->at >= '0' && *j->at <= '9'; j->at++) {
        if (n > (UINT64_MAX - 9) / 10) json_die(j, "a smaller number");  // it would wrap
        n = 10 * n + (uint64_t)(*j->at - '0');
    }
    return n;
}

// Whole numbers in brackets, four at most; returns how many.
static inline int json_list(Json* j, uint64_t list[4]) {
    int n = 0;
    json_need(j, '[');
    while (json_next(j, ']', &n)) {
        if (n > 4) json_die(j, "four numbers at most");
        list[n - 1] = json_count(j);
    }
    return n;
}

// Any value, up to the comma or the bracket behind it; its own grammar is not looked at.
static inline void json_skip(Json* j) {
    json_space(j);
    const char* begin = j->at;
    for (int64_t depth = 0; j->at < j->end; json_space(j)) {
        char c = *j->at;
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
        depth += (c == '[' || c == '{') - (c == ']' || c == '}');
        if (c == '"') json_string(j, NULL, 0);
        else j->at++;
    }
    if (j->at == begin) json_die(j, "a value");
}

// -------------------------------------------------------------------------------------------------
// Files of tensors

// Numbers of another type cannot be read, but their tensor may lie between others.
typedef enum { F32, F16, BF16, OTHER_TYPE } NumberType;

enum { MOST_FACTS = 40, MOST_TENSORS = 16384, MOST_HEADER = 100000000 };

typedef struct {  // what a file says about itself (__metadata__): texts by name
    int n;
    char key[MOST_FACTS][32], value[MOST_FACTS][64];
} Facts;

// The value of a fact, or NULL.
static inline const char* facts_find(const Facts* facts, const char* key) {
    for (int i = 0; i < facts->n; i++) {
        if (strcmp(facts->key[i], key) == 0) return facts->value[i];
    }
    return NULL;
}

// Adds a fact of the program's own, whose text must need no escape in JSON.
__attribute__((format(printf, 3, 4))) static inline void facts_add(
    Facts* facts, const char* key, const char* format, ...) {
    size_t key_size = sizeof facts->key[0], size = sizeof facts->value[0];
    va_list args;
    if (facts->n == MOST_FACTS) die(EXIT_RESOURCES, key, "found %d facts, need fewer", facts->n);
    va_start(args, format);
    int length = vsnprintf(facts->value[facts->n], size, format, args);
    va_end(args);
    if (strlen(key) >= key_size || (size_t)length >= size) {  // cut off, it could equal another
        die(EXIT_RESOURCES, key, "found a fact of %d bytes, need less than %zu", length, size);
    }
    memcpy(facts->key[facts->n++], key, strlen(key) + 1);
}

// __metadata__ of any file. Facts of ours fit; texts that do not are others', and passed over.
static inline void json_facts(Json* j, Facts* facts) {
    char key[sizeof facts->key[0]], value[sizeof facts->value[0]];
    json_need(j, '{');
    for (int n = 0; json_next(j, '}', &n);) {
        int fits = json_string(j, key, sizeof key) < sizeof key;
        json_need(j, ':');
        fits &= json_string(j, value, sizeof value) < sizeof value;
        if (fits && facts_find(facts, key)) json_die(j, "each name once in __metadata__");
        if (fits && facts->n < MOST_FACTS) facts_add(facts, key, "%s", value);
    }
}

typedef struct {
    char name[96];
    NumberType type;
    int n_dims;           // 0: one number
    uint64_t shape[4];    // the last index runs fastest
    uint64_t begin, end;  // the bytes of the data that it takes
} FileTensor;

typedef struct {
    const char* path;
    int fd;
    uint64_t data;        // the byte of the file where the numbers begin
    FileTensor* tensors;  // (MOST_TENSORS), in the order of their places
    int n_tensors;
    Facts facts;
} TensorFile;

static inline uint64_t type_size(NumberType type) { return type == F32 ? 4 : 2; }

// Bytes of a tensor's numbers; UINT64_MAX, which no file has, when there are more than fit.
static inline uint64_t tensor_bytes(const FileTensor* t) {
    uint64_t n = type_size(t->type);
    for (int d = 0; d < t->n_dims; d++) {
        if (__builtin_mul_overflow(n, t->shape[d], &n)) return UINT64_MAX;
    }
    return n;
}

// The hub's files may leave out the first part of their names.
static inline const char* short_name(const char* name) {
    return strncmp(name, "transformer.", 12) == 0 ? name + 12 : name;  // 12: its length
}

// One tensor's description, its three fields in any order.
static inline void json_tensor(Json* j, FileTensor* t) {
    const char* const fields[3] = {"dtype", "shape", "data_offsets"};
    const char* const need = "dtype, shape and data_offsets, each once";
    char key[16], type[8];
    uint64_t place[4];
    int found[3] = {0, 0, 0};
    json_need(j, '{');
    for (int n = 0; json_next(j, '}', &n);) {
        int i = 0;
        json_string(j, key, sizeof key);
        json_need(j, ':');
        while (i < 3 && strcmp(key, fields[i]) != 0) i++;
        if (i == 3 || found[i]++) json_die(j, need);
        if (i == 0) json_string(j, type, sizeof type);
        if (i == 1) t->n_dims = json_list(j, t->shape);
        if (i == 2 && json_list(j, place) != 2) json_die(j, "data_offsets of two numbers");
    }
    if (!found[0] || !found[1] || !found[2]) json_die(j, need);
    t->begin = place[0];
    t->end = place[1];
    t->type = strcmp(type, "F32") == 0 ? F32 : strcmp(type, "F16") == 0 ? F16
            : strcmp(type, "BF16") == 0 ? BF16 : OTHER_TYPE;
}

// For qsort. Names that short_name makes equal are one name: a reader could take either.
static inline int by_name(const void* a, const void* b) {
    const FileTensor *x = (const FileTensor*)a, *y = (const FileTensor*)b;
    return strcmp(short_name(x->name), short_name(y->name));
}

// For qsort. An empty tensor comes before the one that begins at its place.
static inline int by_place(const void* a, const void* b) {
    const FileTensor *x = (const FileTensor*)a, *y = (const FileTensor*)b;
    if (x->begin == y->begin) return (x->end > y->end) - (x->end < y->end);
    return x->begin < y->begin ? -1 : 1;
}

// Each name once; each tensor as large as its shape says, one behind the other, from the first byte
// of the data to the file's last.
static inline void tensor_file_check(TensorFile* f, uint64_t file_size) {
    uint64_t at = 0, data_size = file_size - f->data;  // at: where the next must begin
    qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, by_name);
    for (int i = 1; i < f->n_tensors; i++) {
        if (by_name(&f->tensors[i - 1], &f->tensors[i]) != 0) continue;
        die(EXIT_INPUT, f->path, "found %s twice, need each name once", f->tensors[i].name);
    }
    qsort(f->tensors, (size_t)f->n_tensors, sizeof *f->tensors, by_place);
    for (int i = 0; i < f->n_tensors; i++) {
        const FileTensor* t = &f->tensors[i];
        uint64_t bytes = tensor_bytes(t);
        if (t->begin != at || t->end < t->begin || t->end > data_size) {
            die(EXIT_INPUT, f->path, "found %s at bytes %llu to %llu of %llu, need it from %llu on",
                t->name, (unsigned long long)t->begin, (unsigned long long)t->end,
                (unsigned long long)data_size, (unsigned long long)at);
        }
        if (bytes == UINT64_MAX || (t->type != OTHER_TYPE && t->end - t->begin != bytes)) {
            die(EXIT_INPUT, f->path, "found %s in %llu bytes, need %llu for its shape", t->name,
                (unsigned long long)(t->end - t->begin), (unsigned long long)bytes);
        }
        at = t->end;
    }
    if (at != data_size) {
        die(EXIT_INPUT, f->path, "found %llu bytes of data, need %llu for its tensors",
            (unsigned long long)data_size, (unsigned long long)at);
    }
}

// A file of which only the size is known: the caller sets `data`, adds the tensors that must be in
// it, and has them checked. The path must stay.
static inline TensorFile* tensor_file_new(const char* path, uint64_t* size) {
    TensorFile* f = (TensorFile*)xmalloc(1, sizeof *f);
    struct stat info;
    f->path = path;
    f->fd = open_regular(path, &info);
    *size = (uint64_t)info.st_size;
    f->tensors = (FileTensor*)xmalloc(MOST_TENSORS, sizeof(FileTensor));
    return f;
}

// A safetensors file: reads and checks its header, none of its numbers. The path must stay.
static inline TensorFile* tensor_file_open(const char* path) {
    uint64_t n = 0, size;  // bytes of the header, of the file
    TensorFile* f = tensor_file_new(path, &size);
    if (size >= 8) read_all(f->fd, path, &n, 8, 0);
    if (size < 8 || n < 2 || n > MOST_HEADER || n > size - 8) {
        die(EXIT_INPUT, path, "found a header of %llu bytes in %llu, need a safetensors file",
            (unsigned long long)n, (unsigned long long)size);
    }
    char* header = (char*)xmalloc(n, 1);
    read_all(f->fd, path, header, n, 8);
    f->data = 8 + n;
    Json j = {header, header + n, path};
    if (*header != '{') json_die(&j, "'{' first");  // so the format says, without white space
    json_need(&j, '{');
    for (int i = 0; json_next(&j, '}', &i);) {
        if (f->n_tensors == MOST_TENSORS) json_die(&j, "fewer tensors");  // a bound on memory
        FileTensor* t = &f->tensors[f->n_tensors];
        if (json_string(&j, t->name, sizeof t->name) >= sizeof t->name) {
            json_die(&j, "a shorter name before it");
        }
        json_need(&j, ':');
        if (strcmp(t->name, "__metadata__") == 0) json_facts(&j, &f->facts);
        else json_tensor(&j, t), f->n_tensors++;
    }
    json_end(&j);
    free(header);
    tensor_file_check(f, size);
    return f;
}

static inline void tensor_file_close(TensorFile* f) {
    close(f->fd);
    free(f->tensors);
    free(f);
}

// A sign, 5 bits of exponent and 10 of fraction: (1 + f/1024) * 2^(e-15); f/1024 * 2^-14 where e is
// 0; infinity or NaN where e is 31. Every one is a float exactly.
static inline float half_to_float(uint16_t h) {
    int exponent = h >> 10 & 31;
    float fraction = (float)(h & 1023), x = ldexpf(1024 + fraction, exponent - 25);  // 25: 15 + 10
    if (exponent == 31) x = fraction > 0 ? NAN : INFINITY;
    if (exponent == 0) x = ldexpf(fraction, -24);
    return h >> 15 ? -x : x;
}

// out (n): the numbers of a tensor from element `at` on, which the caller knows to be there; one
// that is not finite ends the program.
static inline void tensor_read(
    const TensorFile* f, const FileTensor* t, size_t at, size_t n, float* out) {
    // Narrow numbers are read into the upper half of out and widened from the front.
    char* bytes = (char*)out + (t->type == F32 ? 0 : 2 * n);
    uint64_t width = type_size(t->type);
    read_all(f->fd, f->path, bytes, n * width, f->data + t->begin + at * width);
    for (size_t i = 0; i < n; i++) {
        uint16_t half = 0;
        if (t->type != F32) memcpy(&half, bytes + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;  // BF16 is the upper half of a float
        if (t->type == F16) out[i] = half_to_float(half);
        if (t->type == BF16) memcpy(&out[i], &bits, 4);
        if (!isfinite(out[i])) {
            die(EXIT_INPUT, f->path, "found %g at element %zu of %s, need finite numbers",
                (double)out[i], at + i, t->name);
        }
    }
}

// -------------------------------------------------------------------------------------------------
// Records: what a program keeps of a file's tensors. It hands over or takes numbers piece by piece,
// so that no second copy of a model is ever in memory.

typedef struct {
    char name[96];
    size_t rows, cols;  // as kept; 0 rows: a vector
    int transposed;     // the file has (cols, rows)
    int arena, tensor;  // the program's: where the numbers are
    size_t first;       // the first element's index there
} Record;

// Gets or puts count numbers from element first + at on.
typedef void (*Transfer)(void* owner, const Record* r, size_t at, size_t count, float* numbers);

enum { PIECE = 1 << 20 };  // numbers handed over at once

// Elements of a record.
static inline size_t record_size(const Record* r) { return (r->rows ? r->rows : 1) * r->cols; }

// The shape in a file; returns the number of dimensions.
static inline int record_shape(const Record* r, uint64_t shape[2]) {
    shape[0] = r->transposed || !r->rows ? r->cols : r->rows;
    shape[1] = r->transposed ? r->rows : r->cols;
    return r->rows ? 2 : 1;
}

// For a file that is the numbers of records as kept, one behind the other: adds the next. What a
// broken header makes wrap around here, tensor_file_check finds.
static inline void tensor_file_add(TensorFile* f, const Record* r, NumberType type) {
    if (f->n_tensors == MOST_TENSORS) die(EXIT_INPUT, f->path, "too many tensors, need fewer");
    FileTensor* t = &f->tensors[f->n_tensors];
    Record kept = *r;
    kept.transposed = 0;
    memcpy(t->name, r->name, sizeof t->name);
    t->type = type;
    t->n_dims = record_shape(&kept, t->shape);
    t->begin = f->n_tensors++ > 0 ? t[-1].end : 0;
    t->end = t->begin + record_size(r) * type_size(type);
}

// Floats that a transfer needs: a piece, or two copies of a matrix that is transposed on the way.
static inline size_t record_buffer(const Record* records, int n) {
    size_t most = PIECE;
    for (const Record* r = records; r < records + n; r++) {
        if (r->transposed && 2 * record_size(r) > most) most = 2 * record_size(r);
    }
    return most;
}

// out (cols, rows), in (rows, cols)
static inline void transpose(float* out, const float* in, size_t rows, size_t cols) {
    for (size_t i = 0; i < rows; i++) {
        for (size_t j = 0; j < cols; j++) out[j * rows + i] = in[i * cols + j];
    }
}

// The sizes of n dimensions, for a message or a header.
static inline const char* shape_text(
    char text[96], const uint64_t* shape, int n, const char* between) {
    size_t used = 0;
    text[0] = 0;
    for (int d = 0; d < n; d++) {
        used += (size_t)snprintf(text + used, 96 - used, "%s%llu", d > 0 ? between : "",
            (unsigned long long)shape[d]);
    }
    return text;
}

// The tensor of a record; another shape, or a type that cannot be read, ends the program.
static inline const FileTensor* find_record(const TensorFile* f, const Record* r) {
    uint64_t shape[2];
    int n = record_shape(r, shape);
    char found[96], need[96];
    for (int i = 0; i < f->n_tensors; i++) {
        const FileTensor* t = &f->tensors[i];
        if (strcmp(short_name(t->name), short_name(r->name)) != 0) continue;
        int fits = t->n_dims == n && memcmp(t->shape, shape, sizeof *shape * (size_t)n) == 0;
        if (fits && t->type != OTHER_TYPE) return t;
        die(EXIT_INPUT, f->path, "found %s as [%s], need [%s] of F32, F16 or BF16", t->name,
            shape_text(found, t->shape, t->n_dims, ", "), shape_text(need, shape, n, ", "));
    }
    die(EXIT_INPUT, f->path, "found no tensor %s, need it", r->name);
}

// Puts the numbers of every record; what else is in the file is left alone. buffer: record_buffer
// floats.
static inline void records_load(
    const TensorFile* f, const Record* records, int n, Transfer put, void* owner, float* buffer) {
    for (const Record* r = records; r < records + n; r++) {
        const FileTensor* t = find_record(f, r);
        size_t size = record_size(r), piece = r->transposed ? size : (size_t)PIECE;
        for (size_t at = 0; at < size; at += piece) {
            size_t count = size - at < piece ? size - at : piece;
            tensor_read(f, t, at, count, buffer);
            if (r->transposed) transpose(buffer + size, buffer, r->cols, r->rows);
            put(owner, r, at, count, buffer + (r->transposed ? size : 0));
        }
    }
}

#endif
