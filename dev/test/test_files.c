// test_files.c: tests of data/tensors.h, checkpoint.h, eval.h and options.h: files of tensors,
// checkpoints, logs, questions, floors, settings and command lines; read, written, cut, refused.
//
//     cc -O3 -march=native -fopenmp -Wall -Wextra dev/test/test_files.c -o test_files -lm
//
// A line is a family of cases: how many of them had another outcome than they must. What is not
// right must end the process with its code and exactly one line, "error: WHERE: ..", so each such
// case is a child. All files live in a fresh folder under $TMPDIR or /tmp, removed at the end.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // for nftw, on_exit and unshare
#endif
#include "../../data/tensors.h"
#include "check.h"
#include <float.h>
#include <ftw.h>
#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

// -------------------------------------------------------------------------------------------------
// System calls of the headers that fail on demand: their calls are sent through these

typedef enum { WRITE, FSYNC, RENAME, CLOSE, OPEN, MKDIR, N_CALLS } Call;

static struct {
    Call call;
    int at;         // the call of this kind that fails, from 1; 0: none
    int from_then;  // and all of its kind after it
    int error;      // its errno; 0: a write does not fail, but writes less:
    int half;       // half of what is asked for, or nothing
    int count;      // calls of this kind so far
} fault;

// From here on the nth call of a kind fails, or all of them from then on.
static void set_fault(Call call, int nth, int from_then, int error) {
    memset(&fault, 0, sizeof(fault));
    fault.call = call;
    fault.at = nth;
    fault.from_then = from_then;
    fault.error = error;
}

// Whether this call is one that must fail; sets errno.
static int call_fails(Call call) {
    if (call != fault.call || fault.at == 0) return 0;
    fault.count++;
    if (fault.count != fault.at && !(fault.from_then && fault.count > fault.at)) return 0;
    errno = fault.error;
    return 1;
}

static ssize_t faulty_write(int fd, const void* data, size_t n) {
    if (!call_fails(WRITE)) return write(fd, data, n);
    if (fault.error) return -1;
    return fault.half ? write(fd, data, (n + 1) / 2) : 0;
}

// No plug is pulled here, so there is no need to wait for the disk.
static int faulty_fsync(int fd) { return call_fails(FSYNC) ? -1 : fcntl(fd, F_GETFD) < 0 ? -1 : 0; }

static int faulty_rename(const char* from, const char* to) {
    return call_fails(RENAME) ? -1 : rename(from, to);
}

static int faulty_close(int fd) {  // as Linux does, it closes even where it fails
    int result = close(fd);
    return call_fails(CLOSE) ? -1 : result;
}

static int faulty_open(const char* path, int flags, ...) {
    return call_fails(OPEN) ? -1 : open(path, flags, 0666);
}

static int faulty_mkdir(const char* path, mode_t mode) {
    return call_fails(MKDIR) ? -1 : mkdir(path, mode);
}

#define write faulty_write
#define fsync faulty_fsync
#define rename faulty_rename
#define close faulty_close
#define open faulty_open
#define mkdir faulty_mkdir
#include "../../data/checkpoint.h"
#include "../../data/eval.h"
#include "../../data/options.h"
#undef write
#undef fsync
#undef rename
#undef close
#undef open
#undef mkdir

// -------------------------------------------------------------------------------------------------
// Files and folders of the tests

#define COUNT_OF(array) (sizeof(array) / sizeof(*(array)))

// Of families with a case for every byte or bit, every case; under AddressSanitizer, where a fork
// takes ten times as long, every seventh.
#ifdef __SANITIZE_ADDRESS__
enum { STEP = 7 };
#else
enum { STEP = 1 };
#endif

static char folder[1024];  // the fresh folder

// The path of a name in the folder; it stays valid for the next fifteen calls.
__attribute__((format(printf, 1, 2))) static const char* at(const char* format, ...) {
    static char paths[16][2048];
    static int next;
    char* path = paths[next++ % 16];
    int n = snprintf(path, sizeof(paths[0]), "%s/", folder);
    va_list args;
    va_start(args, format);
    vsnprintf(path + n, sizeof(paths[0]) - (size_t)n, format, args);
    va_end(args);
    return path;
}

static int remove_entry(const char* path, const struct stat* info, int type, struct FTW* place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

static void remove_tree(const char* path) { nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS); }

static void write_file(const char* path, const void* data, size_t n) {
    unlink(path);  // a new file: to cut an old one and write it anew makes ext4 wait for the disk
    FILE* file = fopen(path, "wb");
    if (!file || fwrite(data, 1, n, file) != n || fclose(file)) {
        die_errno(EXIT_RESOURCES, path, "need a test file");
    }
}

static void write_text(const char* path, const char* text) { write_file(path, text, strlen(text)); }

// Whether a file holds these bytes and no others.
static int file_is(const char* path, const void* data, size_t n) {
    size_t size;
    char* text = read_file(path, &size);
    int same = size == n && memcmp(text, data, n) == 0;
    free(text);
    return same;
}

static int is_visible(const struct dirent* entry) { return entry->d_name[0] != '.'; }

// The names in a folder, sorted, with spaces between.
static const char* listing(const char* path) {
    static char text[4096];
    struct dirent** entries;
    int n = scandir(path, &entries, is_visible, alphasort);
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%s%s", i > 0 ? " " : "", entries[i]->d_name);
        free(entries[i]);
    }
    if (n >= 0) free(entries);
    return text;
}

// Whether these are the names in a folder.
static int lists(const char* path, const char* names) { return strcmp(listing(path), names) == 0; }

// -------------------------------------------------------------------------------------------------
// Cases: most are children, whose exit code, output, time and memory are compared

typedef void (*Action)(const char* path);

enum { SAME = 0, DIFFERENT = 9, NOT_HERE = 77 };  // exit codes of children that go through

static struct {
    int code;          // exit code, or 128 + signal
    char text[16384];  // what it printed, on stdout or stderr
    size_t n;          // bytes of it
    double kib;        // memory that it took beside its parent's
} outcome;  // of the last child

static double longest_case;     // seconds of the processor, however busy the machine is
static double largest_error;    // KiB that a child took to refuse something
static int all_cases;
static int family_cases, family_wrong;  // since the last family was closed

// What a process that dies has not freed is no leak: leaves before LeakSanitizer looks.
static void leave(int code, void* unused) {
    (void)unused;
    _exit(code);
}

static double resident_kib(void) {  // of this process
    double pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    int n = file ? fscanf(file, "%*s %lf", &pages) : 0;
    if (n != 1) die_errno(EXIT_RESOURCES, "/proc/self/statm", "need it");
    fclose(file);
    return pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

static double seconds_of(const struct timeval* t) {
    return (double)t->tv_sec + 1e-6 * (double)t->tv_usec;
}

// Runs the action in a child, which is killed after ten seconds: a hang is a failure.
static void run_child(Action action, const char* path) {
    int ends[2], status = 0;
    fflush(stdout);
    double resident = resident_kib();
    if (pipe(ends)) die_errno(EXIT_RESOURCES, "pipe", "need one");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(10);
        on_exit(leave, NULL);
        action(path);
        fflush(stdout);
        _exit(SAME);
    }
    close(ends[1]);
    outcome.n = 0;
    for (ssize_t got = 1; got > 0; outcome.n += got > 0 ? (size_t)got : 0) {
        got = read(ends[0], outcome.text + outcome.n, sizeof(outcome.text) - 1 - outcome.n);
    }
    outcome.text[outcome.n] = 0;
    close(ends[0]);
    struct rusage usage;
    wait4(child, &status, 0, &usage);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    outcome.kib = (double)usage.ru_maxrss - resident;
    longest_case = fmax(longest_case, seconds_of(&usage.ru_utime) + seconds_of(&usage.ru_stime));
}

// One line "error: WHERE: ..found..", and nothing else.
static int is_error(int code, const char* where, const char* found) {
    char start[2200];
    snprintf(start, sizeof(start), "error: %s: ", where);
    largest_error = fmax(largest_error, outcome.kib);
    const char* newline = strchr(outcome.text, '\n');
    return outcome.code == code && strncmp(outcome.text, start, strlen(start)) == 0 && newline &&
        newline + 1 == outcome.text + outcome.n && strstr(outcome.text, found);
}

// Counts a case of the family that is being tested, and tells of the first wrong ones.
static void count_case(int right, const char* what) {
    all_cases++;
    family_cases++;
    family_wrong += !right;
    if (right || family_wrong > 5) return;
    printf("    wrong: %s (code %d: %.300s)\n", what, outcome.code, outcome.text);
}

// The action on a path must end with the code and a line that names the path.
static void count_refused(
    Action action, const char* path, int code, const char* found, const char* what) {
    run_child(action, path);
    count_case(is_error(code, path, found), what);
}

// A case that does not end the process.
static void count_here(int right, const char* what) {
    outcome.code = 0;
    outcome.text[0] = 0;
    count_case(right, what);
}

// Prints how many of the cases since the last family were wrong. A family without cases has failed.
static void close_family(const char* name) {
    char line[128];
    snprintf(line, sizeof(line), "%s: %d cases", name, family_cases);
    check(line, family_cases > 0 ? family_wrong : 1, 0);
    family_cases = family_wrong = 0;
}

// -------------------------------------------------------------------------------------------------
// JSON

static const char* const count_keys[3] = {"a", "b", "c"};
static int counts[3];  // by these keys, of the last file

// Numbers that no file has are there before.
static void read_counts(const char* path) {
    int before[3] = {-1, -2, -3};
    memcpy(counts, before, sizeof(counts));
    json_read_counts(path, count_keys, counts, 3);
}

// Numbers by their keys, whatever else is there and however it is set.
static void check_json_numbers(void) {
    const struct {
        const char* text;
        int a, b, c;
    } good[] = {
        {"{}", -1, -2, -3},
        {" \t\r\n{ \n } \r\n", -1, -2, -3},
        {"{\"a\":1}", 1, -2, -3},
        {"{\"c\":3,\"b\":0,\"a\":10}", 10, 0, 3},
        {"{ \"a\" : 7 ,\n\t\"b\"\r:\n8 }", 7, 8, -3},
        {"{\"a\":1,\"a\":2}", 2, -2, -3},
        {"{\"d\":[1,{\"a\":5},[[]]],\"b\":4}", -1, 4, -3},
        {"{\"d\":{\"a\":{\"b\":{}}},\"c\":4}", -1, -2, 4},
        {"{\"d\":\"\\\"a\\\":5,}\",\"b\":4}", -1, 4, -3},
        {"{\"d\":\"\\\\\",\"b\":4}", -1, 4, -3},
        {"{\"\\\"a\":6,\"\\u0061\":6,\"A\":6,\"a \":6}", -1, -2, -3},
        {"{\"d\":\"\xc3\xa9\xff\",\"b\":4}", -1, 4, -3},
        {"{\"d\":null,\"e\":true,\"f\":-1.5e+10,\"b\":4}", -1, 4, -3},
        {"{\"a\":2147483647,\"b\":2147483648,\"c\":18446744073709551609}", INT32_MAX, INT32_MAX,
            INT32_MAX},
        {"{\"a name of more than the sixty-four bytes that are kept, and no key\":1}", -1, -2, -3},
    };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        write_text(at("json"), good[i].text);
        read_counts(at("json"));
        count_here(counts[0] == good[i].a && counts[1] == good[i].b && counts[2] == good[i].c,
            good[i].text);
    }
    close_family("json: numbers");
}

static void check_json_errors(void) {
    const char* const bad[] = {
        "", " ", "[]", "a", "\"a\"", "{", "}", "{]", "{\"a\"}", "{\"a\":}", "{\"d\":}", "{\"d\":,}",
        "{\"d\":1", "{\"a\":1", "{\"a\":1]", "{\"a\":1,}", "{,\"a\":1}", "{\"a\":1 \"b\":2}",
        "{\"a\":1,,\"b\":2}", "{a:1}", "{'a':1}", "{\"a\":-1}", "{\"a\":+1}", "{\"a\":1.0}",
        "{\"a\":1e3}", "{\"a\":\"1\"}", "{\"a\":null}", "{\"a\":[1]}", "{\"a\":x}", "{\"a\"1}",
        "{\"a\":18446744073709551616}", "{\"a\":99999999999999999999999999}", "{\"a\":1}}",
        "{\"a\":1}x", "{\"a\":1}{}", "{\"d\":[1}", "{\"d\":\"\\\"}", "{\"d\":\"\\",
        "{\"d\":\"\n\"}", "{\"a\n\":1}", "\xef\xbb\xbf{}", "{\"a\":1\v}", "{\"a\f\":1}",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        write_text(at("json"), bad[i]);
        count_refused(read_counts, at("json"), EXIT_INPUT, "its JSON, need ", bad[i]);
    }
    close_family("json: errors");
    const char text[] =
        "{ \"d\": {\"e\": [1, {\"a\": \"x\\\"y\\\\\"}], \"f\": {}},\n\t\"a\": 12, \"b\" :\r3}";
    for (size_t n = 0; n < sizeof(text) - 1; n++) {
        write_file(at("json"), text, n);
        count_refused(read_counts, at("json"), EXIT_INPUT, "found the end of its JSON", text);
    }
    write_file(at("json"), "{\"a\":1}\0", 8);
    count_refused(read_counts, at("json"), EXIT_INPUT, "nothing behind", "a zero byte");
    close_family("json: cut off anywhere");
}

// The cursor by itself: strings into room of any size.
static void check_json_strings(void) {
    const char text[] = " \"0123\\\"56\\\\\" 5";
    for (size_t size = 0; size <= 12; size++) {
        char out[16];
        memset(out, 'x', sizeof(out));
        Json j = {text, text + sizeof(text) - 1, "string"};
        size_t n = json_string(&j, out, size), kept = size > 10 ? 10 : size - 1;
        int right = n == 10 && json_count(&j) == 5 && j.at == j.end && out[size] == 'x';
        if (size > 0) right &= memcmp(out, "0123\\\"56\\\\", kept) == 0 && out[kept] == 0;
        count_here(right, "a string into a room of 0 to 12 bytes");
    }
    close_family("json: strings in any room");
}

// -------------------------------------------------------------------------------------------------
// A small model, whose numbers follow from their place

enum { MODEL_TENSORS = 4, MODEL_SIZE = 24, MODEL_RECORDS = 5 };

typedef struct {
    float numbers[MODEL_TENSORS][MODEL_SIZE];
} Model;

static const Record records[MODEL_RECORDS] = {
    {"transformer.wte.weight", 5, 4, 0, 0, 0, 0},
    {"transformer.h.0.ln_1.bias", 0, 6, 0, 0, 1, 0},
    {"transformer.h.1.ln_1.bias", 0, 6, 0, 0, 1, 6},
    {"transformer.h.0.attn.c_attn.weight", 3, 7, 1, 0, 2, 0},
    {"adam_m.wte", 0, 20, 0, 1, 3, 0},
};

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

// Any float that is finite; no two tensors look alike.
static float number_at(int tensor, size_t i) {
    uint32_t bits = (uint32_t)splitmix64((uint64_t)tensor << 32 | i);
    if ((bits >> 23 & 255) == 255) bits ^= 1u << 30;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Beyond what records name there are numbers, too: they must be neither written nor read.
static void fill_model(Model* model) {
    for (int t = 0; t < MODEL_TENSORS; t++) {
        for (size_t i = 0; i < MODEL_SIZE; i++) model->numbers[t][i] = number_at(t, i);
    }
}

static void get_numbers(void* owner, const Record* r, size_t first, size_t n, float* numbers) {
    memcpy(numbers, ((Model*)owner)->numbers[r->tensor] + r->first + first, sizeof(float) * n);
}

static void put_numbers(void* owner, const Record* r, size_t first, size_t n, float* numbers) {
    memcpy(((Model*)owner)->numbers[r->tensor] + r->first + first, numbers, sizeof(float) * n);
}

static const size_t used_numbers[MODEL_TENSORS] = {20, 12, 21, 20};

// Reads a file's records; returns whether every number is as it was, bit by bit, and no other set.
static int model_is_in(const char* path) {
    static Model model;
    static float buffer[PIECE];
    memset(&model, 0xff, sizeof(model));
    TensorFile* f = tensor_file_open(path);
    records_load(f, records, MODEL_RECORDS, put_numbers, &model, buffer);
    tensor_file_close(f);
    int same = 1;
    for (int t = 0; t < MODEL_TENSORS; t++) {
        for (size_t i = 0; i < MODEL_SIZE; i++) {
            uint32_t right = i < used_numbers[t] ? bits_of(number_at(t, i)) : 0xffffffff;
            same &= bits_of(model.numbers[t][i]) == right;
        }
    }
    return same;
}

// What children do: a file that is good, but not the same, is told from one that is refused.
static void load_model(const char* path) {
    if (!model_is_in(path)) _exit(DIFFERENT);
}

static Facts some_facts(void) {
    Facts facts;
    memset(&facts, 0, sizeof(facts));
    facts_add(&facts, "step", "%d", 7);
    facts_add(&facts, "a", "%s", "");
    return facts;
}

static const char* bad_record;  // of the last checkpoint: what was not finite, or NULL

// A checkpoint of the small model in the folder `out`; returns the error of its commit.
static int save(const char* out, int step, Model* model) {
    static float buffer[PIECE];
    Facts facts = some_facts(), none;
    Checkpoint c;
    memset(&none, 0, sizeof(none));
    checkpoint_begin(&c, out, step);
    checkpoint_tensors(&c, "model.safetensors", &none, records, 4, get_numbers, model, buffer);
    checkpoint_tensors(&c, "optimizer.safetensors", &facts, records, MODEL_RECORDS, get_numbers,
        model, buffer);
    checkpoint_hub_files(&c, 259, 16, 32, 2, 4, "{\"a\": 0}\n", "#version: 0.2\n");
    bad_record = c.bad;
    return checkpoint_commit(&c, out);
}

// The same with the numbers that model_is_in looks for.
static int save_good(const char* out, int step) {
    static Model model;
    fill_model(&model);
    return save(out, step, &model);
}

// A fresh folder in which step 1 is saved.
static void new_run(const char* name) {
    const char* out = at("%s", name);
    remove_tree(out);
    mkdir(out, 0755);
    if (save_good(out, 1)) die(EXIT_RESOURCES, out, "cannot be written, need a checkpoint");
}

// -------------------------------------------------------------------------------------------------
// safetensors: what is written is read back, whatever names and types

// A file of any header and n bytes of data (NULL: zeros).
static void write_tensors(const char* path, const char* header, const void* data, size_t n) {
    uint64_t size = strlen(header);
    char* file = (char*)xmalloc(8 + size + n, 1);
    memcpy(file, &size, 8);
    memcpy(file + 8, header, size);
    if (data) memcpy(file + 8 + size, data, n);
    write_file(path, file, 8 + size + n);
    free(file);
}

// The record that a case is about; where it is large, its numbers are those of a tensor 5.
static Record wanted;
static int wrong_numbers;

// The record that the next child looks for.
static void want(const char* name, size_t rows, size_t cols, int transposed) {
    memset(&wanted, 0, sizeof(wanted));
    snprintf(wanted.name, sizeof(wanted.name), "%s", name);
    wanted.rows = rows;
    wanted.cols = cols;
    wanted.transposed = transposed;
}

static void get_large(void* owner, const Record* r, size_t first, size_t n, float* numbers) {
    (void)owner, (void)r;
    for (size_t i = 0; i < n; i++) numbers[i] = number_at(5, first + i);
}

// owner: how many have been put.
static void put_large(void* owner, const Record* r, size_t first, size_t n, float* numbers) {
    (void)r;
    for (size_t i = 0; i < n; i++) wrong_numbers += numbers[i] != number_at(5, first + i);
    *(size_t*)owner += n;
}

static void round_trip_large(const char* path) {
    size_t numbers = 0;
    float* buffer = (float*)xmalloc(record_buffer(&wanted, 1), sizeof(float));
    Facts facts = some_facts();
    Checkpoint c;
    checkpoint_begin(&c, path, 5);
    checkpoint_tensors(&c, "large", &facts, &wanted, 1, get_large, NULL, buffer);
    int error = checkpoint_commit(&c, path);
    TensorFile* f = tensor_file_open(at("large/step_000005/large"));
    records_load(f, &wanted, 1, put_large, &numbers, buffer);
    if (error || wrong_numbers || numbers != record_size(&wanted)) _exit(DIFFERENT);
}

// Sizes around that of a piece, and matrices that are transposed whole.
static void check_large_records(void) {
    const size_t shapes[][3] = {{0, PIECE - 1, 0}, {0, PIECE, 0}, {0, PIECE + 1, 0},
        {3, PIECE - 7, 0}, {1, 5, 1}, {5, 1, 1}, {1500, 1001, 1}, {0, 1, 0}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        want("transformer.x", shapes[i][0], shapes[i][1], (int)shapes[i][2]);
        remove_tree(at("large"));
        mkdir(at("large"), 0755);
        run_child(round_trip_large, at("large"));
        count_case(outcome.code == SAME, "a record as large as a piece, or larger");
    }
    close_family("tensors: round trip of large records");
}

// The small model as another program might write it: without facts, in the opposite order.
static void write_model(const char* path, const char* prefix) {
    char header[2048] = "{", shape[96];
    float data[MODEL_TENSORS * MODEL_SIZE];
    size_t n = 0;
    for (const Record* r = records + MODEL_RECORDS - 1; r >= records; r--) {
        uint64_t dims[2];
        size_t used = strlen(header), size = record_size(r);
        snprintf(header + used, sizeof(header) - used,
            "%s\"%s%s\": {\"shape\": [%s], \"data_offsets\": [%zu, %zu], \"dtype\": \"F32\"}",
            used > 1 ? ", " : "", prefix, short_name(r->name),
            shape_text(shape, dims, record_shape(r, dims), ", "), 4 * n, 4 * (n + size));
        for (size_t i = 0; i < size; i++) {  // element i of the file is (i / rows, i % rows)
            size_t from = r->transposed ? i % r->rows * r->cols + i / r->rows : i;
            data[n++] = number_at(r->tensor, r->first + from);
        }
    }
    strcat(header, "}");
    write_tensors(path, header, data, sizeof(float) * n);
}

static void check_round_trip(void) {
    new_run("round");
    const char* path = at("round/step_000001/optimizer.safetensors");
    count_here(model_is_in(path), "written by us");
    TensorFile* f = tensor_file_open(path);
    count_here(f->data % 8 == 0, "numbers begin at a multiple of 8");
    count_here(strcmp(facts_find(&f->facts, "format"), "pt") == 0, "format: pt");
    count_here(strcmp(facts_find(&f->facts, "step"), "7") == 0, "step: 7");
    count_here(facts_find(&f->facts, "a")[0] == 0 && !facts_find(&f->facts, "b"), "other facts");
    tensor_file_close(f);
    const char* const prefixes[2] = {"", "transformer."};
    for (int i = 0; i < 2; i++) {
        write_model(at("other"), prefixes[i]);
        count_here(model_is_in(at("other")), prefixes[i]);
    }
    close_family("tensors: round trip, names with and without a prefix");
    check_large_records();
}

// Half a float by its definition, put together from bits; below 2^-14 by a product.
static float half_by_bits(uint16_t h) {
    uint32_t sign = (uint32_t)h >> 15 << 31, exponent = h >> 10 & 31, fraction = h & 1023;
    float x = (float)((double)fraction / 16777216.0);
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (exponent > 0) bits = (exponent + 127 - 15) << 23 | fraction << 13;
    if (exponent == 31) bits = 255u << 23 | fraction << 13;
    bits |= sign;
    memcpy(&x, &bits, 4);
    return x;
}

// The upper half of a float.
static float bfloat_by_bits(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static size_t n_read;
static float read_numbers[65536];

// Keeps the numbers of one vector.
static void put_read(void* owner, const Record* r, size_t first, size_t n, float* numbers) {
    (void)owner, (void)r;
    memcpy(read_numbers + first, numbers, sizeof(float) * n);
    n_read += n;
}

// Reads the vector x of a file.
static void load_vector(const char* path) {
    static float buffer[PIECE];
    TensorFile* f = tensor_file_open(path);
    want("x", 0, (size_t)f->tensors[0].shape[0], 0);
    n_read = 0;
    records_load(f, &wanted, 1, put_read, NULL, buffer);
    tensor_file_close(f);
}

// A file of one vector, x: n numbers of `size` bytes.
static void write_vector(
    const char* path, const char* type, size_t n, const void* data, size_t size) {
    char* header = xprintf("{\"x\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
        type, n, n * size);
    write_tensors(path, header, data, n * size);
    free(header);
}

// Every number of 16 bits: the finite ones in one file, bit by bit; of the others those with a
// fraction of one bit at most, each in a file that is refused.
static void check_narrow(const char* type, float (*widen)(uint16_t), int fraction_bits) {
    static uint16_t finite[65536], x[3];
    size_t n = 0, wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t fraction = h & ((1u << fraction_bits) - 1);
        x[1] = (uint16_t)h;
        if (isfinite(widen(x[1]))) finite[n++] = x[1];
        else if ((fraction & (fraction - 1)) == 0) {
            write_vector(at("narrow"), type, 3, x, 2);
            count_refused(load_vector, at("narrow"), EXIT_INPUT, "element 1 of x", "not finite");
        }
    }
    write_vector(at("narrow"), type, n, finite, 2);
    load_vector(at("narrow"));
    for (size_t i = 0; i < n; i++) wrong += bits_of(read_numbers[i]) != bits_of(widen(finite[i]));
    count_here(wrong == 0 && n_read == n, "the finite numbers");
}

static void check_narrow_types(void) {
    check_narrow("F16", half_by_bits, 10);
    int wrong = 0;
    for (int h = 0; h < 65536; h++) {
        float x = half_to_float((uint16_t)h), y = half_by_bits((uint16_t)h);
        wrong += isnan(y) ? !isnan(x) : bits_of(x) != bits_of(y);
    }
    count_here(wrong == 0, "all 65,536");
    close_family("tensors: F16, all 65,536 numbers");
    check_narrow("BF16", bfloat_by_bits, 7);
    close_family("tensors: BF16, all 65,536 numbers");
}

// What is not finite is refused wherever it stands, and named.
static void check_not_finite(void) {
    const uint32_t bits[6] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc00000,
        0xffffffff};
    for (int i = 0; i < 6; i++) {
        for (int place = 0; place < 5; place++) {
            float x[5] = {0, FLT_MAX, -FLT_MAX, FLT_MIN, -0.0f};
            char found[64];
            memcpy(&x[place], &bits[i], 4);
            write_vector(at("float"), "F32", 5, x, 4);
            snprintf(found, sizeof(found), "at element %d of x, need", place);
            count_refused(load_vector, at("float"), EXIT_INPUT, found, "not finite");
        }
    }
    close_family("tensors: F32 that is not finite");
}

// -------------------------------------------------------------------------------------------------
// safetensors: what is refused

// T is a tensor in a header, H a header, W the tensor w that the tests of this section want.
#define T(name, type, shape, place) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" place "]}"
#define H(tensors) "{" tensors "}"
#define W T("w", "F32", "2,3", "0,24")
#define FACTS(facts) "\"__metadata__\":{" facts "}"

typedef struct {
    const char *header, *found;  // found: what the message says; NULL: the file is good
    size_t n;                    // bytes of data
} Header;

// Wants a tensor w of (2,3), and no other.
static void load_w(const char* path) {
    static float buffer[PIECE];
    TensorFile* f = tensor_file_open(path);
    want("w", 2, 3, 0);
    n_read = 0;
    records_load(f, &wanted, 1, put_read, NULL, buffer);
    tensor_file_close(f);
    if (n_read != 6) _exit(DIFFERENT);
}

// One case: the file is read, without a word, or refused with these words (found).
static void count_header(const char* header, const char* found, size_t n) {
    write_tensors(at("header"), header, NULL, n);
    run_child(load_w, at("header"));
    int right = found ? is_error(EXIT_INPUT, at("header"), found)
                      : outcome.code == SAME && outcome.n == 0;
    count_case(right, header);
}

static void check_headers(const char* name, const Header* headers, size_t n) {
    for (size_t i = 0; i < n; i++) count_header(headers[i].header, headers[i].found, headers[i].n);
    close_family(name);
}

#define CHECK_HEADERS(name, headers) \
    check_headers(name, headers, COUNT_OF(headers))

// Any order, any white space, any other tensors beside.
static void check_good_headers(void) {
    const Header headers[] = {
        {H(W), NULL, 24},
        {H(W) "        ", NULL, 24},
        {"{ \"w\" :\t{ \"dtype\":\r\"F32\" , \"shape\":[ 2\n, 3 ] ,\"data_offsets\" :[0 ,24 ]} }\n",
            NULL, 24},
        {"{\"w\":{\"data_offsets\":[0,24],\"shape\":[2,3],\"dtype\":\"F32\"}}", NULL, 24},
        {H(T("w", "F16", "2,3", "0,12")), NULL, 12},
        {H(W "," FACTS("")), NULL, 24},
        {H(FACTS("\"a\":\"\\\"},{\\\\\",\"b\":\"\"") "," W), NULL, 24},
        {H(W "," FACTS("\"a key of more than thirty-one bytes\":\"1\",\"a value\":\"of more than "
            "sixty-three bytes, as those of other programs may well be\"")), NULL, 24},
        {H(W "," T("v", "F32", "2", "24,32")), NULL, 32},
        {H(T("v", "BF16", "1,1,1,4", "24,32") "," T("transformer.w", "F32", "2,3", "0,24")), NULL,
            32},
        {H(W "," T("v", "I64", "2,2", "24,56")), NULL, 56},
        {H(W "," T("v", "U8", "3", "24,27")), NULL, 27},
        {H(W "," T("v", "F32", "", "24,28")), NULL, 28},
        {H(W "," T("v", "F32", "0,5", "24,24")), NULL, 24},
        {H(W "," T("v", "F32", "0", "0,0")), NULL, 24},
    };
    CHECK_HEADERS("tensors: headers that are right", headers);
}

// Every byte of the data belongs to one tensor.
static void check_bad_places(void) {
    const Header headers[] = {
        {H(W), "found 25 bytes of data, need 24", 25},
        {H(W), "found 88 bytes of data, need 24", 88},
        {H(W), "found w at bytes 0 to 24 of 23", 23},
        {H(W), "found w at bytes 0 to 24 of 0", 0},
        {H(T("w", "F32", "2,3", "0,20")), "found w in 20 bytes, need 24", 20},
        {H(T("w", "F32", "2,3", "0,28")), "found w in 28 bytes, need 24", 28},
        {H(T("w", "F32", "2,3", "24,0")), "found w at bytes 24 to 0", 24},
        {H(T("w", "F32", "2,3", "4,28")), "need it from 0 on", 28},
        {H(T("w", "F32", "2,3", "0,0")), "found w in 0 bytes, need 24", 24},
        {H(T("w", "F32", "2,3", "0,18446744073709551600")), "of 24, need it from 0 on", 24},
        {H(T("w", "F32", "2,3", "18446744073709551592,0")), "need it from 0 on", 24},
        {H(T("w", "F32", "2,3", "18446744073709551592,16")), "need it from 0 on", 24},
        {H(T("w", "F32", "2,3", "0,18446744073709551640")), "a smaller number", 24},
        {H(T("w", "F32", "2,3", "0")), "data_offsets of two numbers", 24},
        {H(T("w", "F32", "2,3", "0,24,24")), "data_offsets of two numbers", 24},
        {H(T("w", "F32", "2,3", "")), "data_offsets of two numbers", 24},
        {H(T("w", "F32", "2,3", "-24,0")), "a whole number", 24},
        {H(T("w", "F32", "2,3", "0,24.0")), "need ','", 24},
        {H(T("w", "F32", "2,3", "0,\"24\"")), "a whole number", 24},
        // Overlaps, holes, one inside another, the same place twice.
        {H(W "," T("v", "F32", "1", "20,24")), "need it from 24 on", 24},
        {H(W "," T("v", "F32", "1", "28,32")), "need it from 24 on", 32},
        {H(T("v", "F32", "1", "28,32") "," W), "need it from 24 on", 32},
        {H(W "," T("v", "F32", "2,3", "0,24")), "need it from 24 on", 24},
        {H(W "," T("v", "F32", "1", "0,4")), "need it from 4 on", 24},
        {H(W "," T("v", "F32", "1", "8,12")), "need it from 24 on", 24},
        {H(W "," T("v", "I64", "1", "32,40")), "need it from 24 on", 40},
        {H(W "," T("v", "I64", "1", "24,40")), "of 32, need it", 32},
        {H(W "," T("v", "I64", "1", "24,8")), "found v at bytes 24 to 8 of 24", 24},
        {H(W "," T("v", "F32", "0", "12,12")), "need it from 24 on", 24},
        {"{}", "found 24 bytes of data, need 0", 24},
        {H(FACTS("")), "found 24 bytes of data, need 0", 24},
    };
    CHECK_HEADERS("tensors: places that are wrong", headers);
}

// As large as the bytes, by a product that does not wrap, and of the dimensions that are wanted.
static void check_bad_shapes(void) {
    const char* const wraps = "need 18446744073709551615 for its shape";
    const Header headers[] = {
        {H(T("w", "F32", "3,2", "0,24")), "found w as [3, 2], need [2, 3] of F32", 24},
        {H(T("w", "F32", "6", "0,24")), "found w as [6], need [2, 3]", 24},
        {H(T("w", "F32", "1,2,3", "0,24")), "found w as [1, 2, 3], need [2, 3]", 24},
        {H(T("w", "F32", "2,3,1,1", "0,24")), "found w as [2, 3, 1, 1], need", 24},
        {H(T("w", "F32", "2,3,1,1,1", "0,24")), "four numbers at most", 24},
        {H(T("w", "F32", "2,0", "0,0")), "found w as [2, 0]", 0},
        {H(T("w", "F32", "", "0,4")), "found w as [], need [2, 3]", 4},
        {H(T("w", "F32", "2,4", "0,24")), "need 32 for its shape", 24},
        // Four times these products is, modulo 2^64: 0, 0, 0, 24, 24, 0, small, small.
        {H(T("w", "F32", "4294967296,4294967296", "0,0")), wraps, 0},
        {H(T("w", "F32", "2147483648,2147483648", "0,0")), wraps, 0},
        {H(T("w", "F32", "4611686018427387904", "0,0")), wraps, 0},
        {H(T("w", "F32", "4611686018427387910", "0,24")), wraps, 24},
        {H(T("w", "F32", "2,9223372036854775811", "0,24")), wraps, 24},
        {H(T("w", "F32", "65536,65536,65536,65536", "0,0")), wraps, 0},
        {H(T("w", "F32", "3037000500,3037000500,2", "0,24")), wraps, 24},
        {H(T("w", "F32", "18446744073709551600,1", "0,24")), wraps, 24},
        {H(T("w", "BF16", "9223372036854775808", "0,0")), wraps, 0},
        {H(T("w", "I64", "9223372036854775808,2", "0,0")), wraps, 0},
        {H(T("w", "F32", "18446744073709551615,1", "0,24")), "a smaller number", 24},
        {H(T("w", "F32", "4294967295,4294967295,0", "0,0")), wraps, 0},
        {H(T("w", "F32", "-2,3", "0,24")), "a whole number", 24},
        {H(T("w", "F32", "2.0,3", "0,24")), "need ','", 24},
        {H(T("w", "F32", "[2,3]", "0,24")), "a whole number", 24},
        {H(T("w", "F32", "2,3,", "0,24")), "a whole number", 24},
        {H(T("w", "F32", "2 3", "0,24")), "need ','", 24},
    };
    CHECK_HEADERS("tensors: shapes that are wrong", headers);
}

// Fields that lack, twice, or of another kind; names twice; anything behind the header.
static void check_bad_fields(void) {
    const char* const fields = "dtype, shape and data_offsets, each once";
    const Header headers[] = {
        {H("\"w\":{\"shape\":[2,3],\"data_offsets\":[0,24]}"), fields, 24},
        {H("\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,24]}"), fields, 24},
        {H("\"w\":{\"dtype\":\"F32\",\"shape\":[2,3]}"), fields, 24},
        {H("\"w\":{}"), fields, 24},
        {H(T("w", "F32\",\"dtype\":\"F32", "2,3", "0,24")), fields, 24},
        {H(T("w", "F32", "9],\"shape\":[2,3", "0,24")), fields, 24},
        {H(T("w", "F32", "2,3", "0,24],\"x\":[1")), fields, 24},
        {H(T("w", "F32", "2,3],\"data_offsets.\":[0", "0,24")), fields, 24},
        {H(T("w", "F64", "2,3", "0,24")), "need [2, 3] of F32, F16 or BF16", 24},
        {H(T("w", "f32", "2,3", "0,24")), "need [2, 3] of F32, F16 or BF16", 24},
        {H(T("w", "", "2,3", "0,24")), "need [2, 3] of F32, F16 or BF16", 24},
        {H(T("w", "F32 or something else", "2,3", "0,24")), "need [2, 3] of F32, F16 or", 24},
        {H("\"w\":{\"dtype\":32,\"shape\":[2,3],\"data_offsets\":[0,24]}"), "need '\"'", 24},
        {H("\"w\":{\"dtype\":null,\"shape\":[2,3],\"data_offsets\":[0,24]}"), "need '\"'", 24},
        {H("\"w\":{\"dtype\":\"F32\",\"shape\":6,\"data_offsets\":[0,24]}"), "need '['", 24},
        {H("\"w\":[]"), "need '{'", 24},
        {H("\"w\":null"), "need '{'", 24},
        {H(T("v", "F32", "2,3", "0,24")), "found no tensor w, need it", 24},
        {H(T("W", "F32", "2,3", "0,24")), "found no tensor w, need it", 24},
        {H(T("w.w", "F32", "2,3", "0,24")), "found no tensor w, need it", 24},
        {H(W "," T("w", "F32", "1", "24,28")), "found w twice", 28},
        {H(W "," W), "found w twice", 24},
        {H(W "," T("transformer.w", "F32", "1", "24,28")), "w twice, need", 28},
        {H(W "," T("v", "F32", "1", "24,28") "," T("v", "F32", "1", "28,32")), "v twice", 32},
        {H(W "," FACTS("\"a\":\"1\",\"a\":\"2\"")), "each name once in __metadata__", 24},
        {H(W "," FACTS("\"a\":1")), "need '\"'", 24},
        {H(W ",\"__metadata__\":null"), "need '{'", 24},
        {H(W) "x", "nothing behind", 24},
        {H(W) "}", "nothing behind", 24},
        {H(W) "{}", "nothing behind", 24},
        {" " H(W), "'{' first", 24},
        {"[]", "'{' first", 24},
        {H("\"w\n\":1"), "without control characters", 24},
    };
    CHECK_HEADERS("tensors: fields that are wrong", headers);
}

// A name as long as fits and a byte longer; as many facts and tensors as fit, and one more.
static void check_many(void) {
    enum { ROOM = 4 << 20 };
    char *text = (char*)xmalloc(ROOM, 1), *p = text;
    for (int n = 95; n <= 96; n++) {
        snprintf(text, ROOM, H(W "," T("%0*d", "F32", "1", "24,28")), n, 7);
        count_header(text, n == 95 ? NULL : "a shorter name", 28);
    }
    p += snprintf(text, ROOM, "{" W ",\"__metadata__\":{\"0\":\"0\"");
    for (int i = 1; i < 100; i++) p += snprintf(p, 64, ",\"%d\":\"%d\"", i, i);
    snprintf(p, 64, "}}");
    count_header(text, NULL, 24);
    for (int n = MOST_TENSORS; n <= MOST_TENSORS + 1; n++) {
        p = text + snprintf(text, ROOM, "{" W);
        for (int i = 1; i < n; i++) {
            p += snprintf(p, 128, "," T("%d", "F32", "1", "%d,%d"), i, 20 + 4 * i, 24 + 4 * i);
        }
        snprintf(p, 64, "}");
        count_header(text, n == MOST_TENSORS ? NULL : "fewer tensors", 20 + 4 * (size_t)n);
    }
    free(text);
    close_family("tensors: long names, many facts, many tensors");
}

// -------------------------------------------------------------------------------------------------
// safetensors: a good file that is cut off or changed by a bit

static char* good_file;        // optimizer.safetensors of a checkpoint
static size_t good_size;       // its bytes
static size_t good_header;     // those of the size and the header

// The file has facts and tensors of both kinds, and its header is padded.
static void read_good_file(void) {
    new_run("good");
    good_file = read_file(at("good/step_000001/optimizer.safetensors"), &good_size);
    uint64_t n;
    memcpy(&n, good_file, 8);
    good_header = 8 + (size_t)n;
}

// The whole file cut off at every byte; then its header, with a size that says so.
static void check_truncations(void) {
    for (size_t n = 0; n < good_size; n += STEP) {
        write_file(at("cut"), good_file, n);
        count_refused(load_model, at("cut"), EXIT_INPUT, ", need ", "cut off");
    }
    close_family("tensors: the file cut off at every byte");
    char* file = (char*)xmalloc(good_size, 1);
    for (size_t n = 0; n < good_header - 8; n += STEP) {
        size_t data = good_size - good_header;
        if (good_file[8 + n] == ' ') continue;  // only the spaces at the end are missing
        uint64_t size = n;
        memcpy(file, &size, 8);
        memcpy(file + 8, good_file + 8, n);
        memcpy(file + 8 + n, good_file + good_header, data);
        write_file(at("cut"), file, 8 + n + data);
        count_refused(load_model, at("cut"), EXIT_INPUT, ", need ", "a header cut off");
    }
    free(file);
    close_family("tensors: the header cut off at every byte");
}

// Whether a byte is of a text in __metadata__, whose other value only CHECKSUMS could tell.
static int is_fact(size_t byte) {
    const char* begin = strstr(good_file + 8, "\"format\"");
    const char* end = strchr(begin, '}');
    const char* p = good_file + byte;
    return p >= begin && p < end && *p != '"' && *p != ':' && *p != ',';
}

// Refused in one line, or the same numbers as before; the latter only for changed facts.
static void check_bit_flips(void) {
    int same = 0;
    for (size_t bit = 0; bit < 8 * good_header; bit += STEP) {
        good_file[bit / 8] ^= (char)(1 << bit % 8);
        write_file(at("flip"), good_file, good_size);
        run_child(load_model, at("flip"));
        good_file[bit / 8] ^= (char)(1 << bit % 8);
        int unchanged = outcome.code == SAME && outcome.n == 0;
        same += unchanged;
        int right = unchanged ? is_fact(bit / 8) : is_error(EXIT_INPUT, at("flip"), ", need ");
        count_case(right, "a bit of the header");
    }
    count_here(same > 0 && same < 400 / STEP, "most are refused");
    close_family("tensors: every bit of size and header flipped");
}

// The size field, and files much larger or smaller than what it says.
static void check_sizes(void) {
    const uint64_t n = good_header - 8, all = good_size;
    const uint64_t sizes[] = {0, 1, 2, n - 8, n - 1, n + 1, n + 8, all - 9, all - 8, all - 7, all,
        1 << 16, 100000000, 100000001, 1u << 31, 1ull << 32, n + (1ull << 32), 1ull << 63,
        n | 1ull << 63, UINT64_MAX - 8, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (int sparse = 0; sparse < 2; sparse++) {
            memcpy(good_file, &sizes[i], 8);
            write_file(at("size"), good_file, good_size);
            int failed = sparse && truncate(at("size"), sizes[i] < 4096 ? 50000 : 90000000);
            if (failed) die_errno(EXIT_RESOURCES, at("size"), "need a sparse file");
            count_refused(load_model, at("size"), EXIT_INPUT, ", need ", "a size");
        }
    }
    memcpy(good_file, &n, 8);
    write_file(at("size"), good_file, good_size);
    run_child(load_model, at("size"));
    count_case(outcome.code == SAME, "the right size");
    close_family("tensors: sizes of the header, 0 to 2^64 - 1");
}

// The wanted record, then one of (5,4), in 16 bits.
static void open_known_file(const char* path) {
    uint64_t size;
    TensorFile* f = tensor_file_new(path, &size);
    f->data = 1024;
    tensor_file_add(f, &wanted, BF16);
    tensor_file_add(f, &records[0], BF16);
    tensor_file_check(f, size);
    tensor_file_close(f);
}

// Files whose tensors the program knows, as llm.c's: the size must be right to the byte, and no
// product or sum that wraps around may look right.
static void check_known_files(void) {
    const size_t shapes[][2] = {{7, 11}, {0, 77}, {(size_t)1 << 32, (size_t)1 << 32},
        {(size_t)1 << 31, (size_t)1 << 32}, {(size_t)1 << 62, 2}, {SIZE_MAX, SIZE_MAX},
        {SIZE_MAX / 2, 1}, {SIZE_MAX, 1}, {0, SIZE_MAX}, {3, SIZE_MAX / 3}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        for (int extra = -2; extra <= 2; extra++) {
            want("x", shapes[i][0], shapes[i][1], 0);
            write_file(at("known"), "", 0);
            size_t numbers = i < 2 ? 77 + 20 : 20;
            if (truncate(at("known"), 1024 + 2 * (off_t)numbers + extra)) continue;
            run_child(open_known_file, at("known"));
            int good = i < 2 && extra == 0;
            count_case(good ? outcome.code == SAME : is_error(EXIT_INPUT, at("known"), ", need "),
                "a size");
        }
    }
    close_family("tensors: files without a header");
}

// What is no file, for everything that reads one.
static void count_kinds(Action action) {
    const char* const devices[2] = {"/dev/zero", "/dev/null"};
    count_refused(action, folder, EXIT_INPUT, "a directory", "a directory");
    count_refused(action, at("fifo"), EXIT_INPUT, "a pipe or device", "a FIFO, without waiting");
    for (int i = 0; i < 2; i++) {
        count_refused(action, devices[i], EXIT_INPUT, "a pipe or device", devices[i]);
    }
}

// A folder, a FIFO, a device, nothing, a text.
static void check_kinds(void) {
    count_kinds(load_model);
    count_kinds(read_counts);
    count_refused(load_model, at("missing"), EXIT_INPUT, "No such file", "no file");
    write_text(at("no tensors"), "{\"a\": 1}, a text that is long enough");
    count_refused(load_model, at("no tensors"), EXIT_INPUT, "need a safetensors file", "a text");
    close_family("tensors: what is no file of tensors");
}

// A program's own facts, described as "COUNT LENGTH-OF-NAMES LENGTH-OF-VALUES".
static void add_facts(const char* path) {
    Facts facts;
    int n, key, value;
    memset(&facts, 0, sizeof(facts));
    if (sscanf(path, "%d %d %d", &n, &key, &value) != 3) _exit(DIFFERENT);
    for (int i = 0; i < n; i++) {
        char* name = xprintf("%0*d", key, i);
        facts_add(&facts, name, "%0*d", value, 1);
        free(name);
    }
}

// As many and as long as fit, and one more.
static void check_facts(void) {
    const struct {
        const char *facts, *where;  // where: NULL, or the fact that is refused
    } cases[] = {{"40 31 63", NULL}, {"41 2 1", "40"}, {"1 1 64", "0"}, {"1 1 1000", "0"},
        {"1 32 1", "00000000000000000000000000000000"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        run_child(add_facts, cases[i].facts);
        int right = cases[i].where ? is_error(EXIT_RESOURCES, cases[i].where, ", need ")
                                   : outcome.code == SAME;
        count_case(right, cases[i].facts);
    }
    close_family("tensors: facts that do not fit");
}

// -------------------------------------------------------------------------------------------------
// Checkpoints: what is written, and nothing else

// The definition of CRC-32C, a bit at a time.
static uint32_t crc32c_plain(const void* data, size_t n) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= ((const unsigned char*)data)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

// By its definition, not by the function that wrote it.
static uint32_t sum_of_file(const char* path, size_t* size) {
    char* data = read_file(path, size);
    uint32_t crc = crc32c_plain(data, *size);
    free(data);
    return crc;
}

#define FILES "config.json merges.txt model.safetensors optimizer.safetensors " \
    "tokenizer_config.json vocab.json"
enum { N_FILES = 6 };

// CHECKSUMS has a line for each file, and one for the lines above it.
static void check_sums(void) {
    char right[128], name[64];
    size_t size;
    new_run("sums");
    count_here(lists(at("sums/step_000001"), "CHECKSUMS " FILES), "the files");
    char *sums = read_file(at("sums/step_000001/CHECKSUMS"), &size), *line = sums;
    for (int i = 0; i < N_FILES; i++, line = strchr(line, '\n') + 1) {
        size_t bytes;
        sscanf(line, "%63s", name);
        uint32_t crc = sum_of_file(at("sums/step_000001/%s", name), &bytes);
        snprintf(right, sizeof(right), "%s %zu %08x\n", name, bytes, crc);
        count_here(strncmp(line, right, strlen(right)) == 0 && strstr(FILES, name), name);
    }
    size_t above = (size_t)(line - sums);
    snprintf(right, sizeof(right), "# %zu %08x\n", above, crc32c_plain(sums, above));
    count_here(strcmp(line, right) == 0, "the last line");
    free(sums);
    close_family("checkpoint: CHECKSUMS");
}

// Whether a text is in a file.
static int has(const char* path, const char* text) {
    size_t size;
    char* file = read_file(path, &size);
    int found = strstr(file, text) != NULL;
    free(file);
    return found;
}

// The permissions of a file, or -1.
static int mode_of(const char* path) {
    struct stat info;
    return stat(path, &info) == 0 ? (int)(info.st_mode & 0777) : -1;
}

// What transformers and llama.cpp read, and who may.
static void check_files(void) {
    const char* const keys[] = {"vocab_size", "n_positions", "n_ctx", "n_embd", "n_layer", "n_head",
        "bos_token_id", "eos_token_id"};
    const int right[] = {259, 16, 16, 32, 2, 4, 258, 258};
    int values[8] = {0};
    mode_t before = umask(022);
    new_run("files");
    const char* config = at("files/step_000001/config.json");
    json_read_counts(config, keys, values, 8);
    count_here(memcmp(values, right, sizeof(right)) == 0, "sizes in config.json");
    count_here(has(config, "\"architectures\": [\"GPT2LMHeadModel\"]"), "architecture");
    count_here(has(config, "\"activation_function\": \"gelu_new\""), "activation");
    count_here(mode_of(config) == 0644, "a file's mode under the umask 022");
    count_here(mode_of(at("files/step_000001")) == 0755, "a folder's mode under the umask 022");
    config = at("files/step_000001/tokenizer_config.json");
    count_here(has(config, "\"tokenizer_class\": \"GPT2Tokenizer\""), "tokenizer");
    count_here(has(config, "\"model_max_length\": 16,"), "length");
    count_here(file_is(at("files/step_000001/merges.txt"), "#version: 0.2\n", 14), "merges");
    count_here(file_is(at("files/step_000001/vocab.json"), "{\"a\": 0}\n", 9), "vocabulary");
    Checkpoint c;
    checkpoint_begin(&c, at("files"), 2);
    checkpoint_hub_files(&c, 259, 16, 32, 2, 4, NULL, NULL);
    count_here(checkpoint_commit(&c, at("files")) == 0, "without a vocabulary");
    count_here(lists(at("files/step_000002"), "CHECKSUMS config.json"), "only the model's");
    umask(before);
    close_family("checkpoint: its files");
}

// Nothing of time, place or process is in a checkpoint.
static void check_same_bytes(void) {
    char files[] = "CHECKSUMS " FILES;
    new_run("one");
    new_run("two");
    for (char* name = strtok(files, " "); name; name = strtok(NULL, " ")) {
        size_t size;
        char* data = read_file(at("one/step_000001/%s", name), &size);
        count_here(file_is(at("two/step_000001/%s", name), data, size), name);
        free(data);
    }
    close_family("checkpoint: two saves are the same bytes");
}

// The name of the record that has a number, or NULL.
static const char* record_of(int tensor, size_t place) {
    for (const Record* r = records; r < records + MODEL_RECORDS; r++) {
        size_t end = r->first + record_size(r);
        if (r->tensor == tensor && place >= r->first && place < end) return r->name;
    }
    return NULL;
}

// A number that is not finite reaches no file, and is named.
static void check_finite(void) {
    static Model model;
    const float numbers[3] = {NAN, INFINITY, -INFINITY};
    new_run("finite");
    for (int i = 0; i < MODEL_TENSORS * MODEL_SIZE; i += 5) {
        int tensor = i / MODEL_SIZE, place = i % MODEL_SIZE;
        const char* bad = record_of(tensor, (size_t)place);
        fill_model(&model);
        model.numbers[tensor][place] = numbers[i % 3];
        int right = save(at("finite"), 2, &model) == (bad ? EDOM : 0) && bad_record == bad &&
            lists(at("finite"), bad ? "step_000001" : "step_000001 step_000002");
        count_here(right, "NaN or infinity among the numbers");
        remove_tree(at("finite/step_000002"));
    }
    close_family("checkpoint: numbers that are not finite");
}

// -------------------------------------------------------------------------------------------------
// Checkpoints that are damaged

static char step_1[1200];  // the checkpoint

// After some damage, the checkpoint must not count as whole.
static void count_broken(const char* how) { count_here(!checkpoint_is_whole(step_1), how); }

// A file gives way to what is none.
static void replace_file(const char* path) {
    unlink(path);
    count_broken("missing");
    mkdir(path, 0755);
    count_broken("a folder");
    rmdir(path);
    mkfifo(path, 0644);
    count_broken("a FIFO");
    unlink(path);
}

// Spoils a file of the checkpoint in many ways, then makes it whole again.
static void damage_file(const char* path) {
    size_t n;
    char *data = read_file(path, &n), *bytes = (char*)xmalloc(n + 1, 1);
    const size_t lengths[] = {0, 1, 4, 7, n / 4, n / 2, n - 7, n - 2, n - 1, n + 1};
    replace_file(path);
    write_file(path, bytes, n);
    count_broken("zeroed");
    memcpy(bytes, data, n);  // a zero stays behind it
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        write_file(path, bytes, lengths[i]);
        count_broken("cut off, or longer");
    }
    for (size_t i = 0; i < 64; i++) {
        size_t bit = splitmix64(i) % (8 * n);
        bytes[bit / 8] ^= (char)(1 << bit % 8);
        write_file(path, bytes, n);
        count_broken("a bit flipped");
        bytes[bit / 8] ^= (char)(1 << bit % 8);
    }
    write_file(path, data, n);
    free(data), free(bytes);
    count_here(checkpoint_is_whole(step_1), "whole again");
}

// Whatever happens to a file is noticed; a file that nobody wrote is no damage.
static void check_damage(void) {
    char files[] = "CHECKSUMS " FILES;
    new_run("damage");
    snprintf(step_1, sizeof(step_1), "%s", at("damage/step_000001"));
    count_here(checkpoint_is_whole(step_1), "whole");
    for (char* name = strtok(files, " "); name; name = strtok(NULL, " ")) {
        damage_file(at("damage/step_000001/%s", name));
    }
    write_text(at("damage/step_000001/notes"), "a user's own");
    count_here(checkpoint_is_whole(step_1), "another file beside");
    close_family("checkpoint: each file missing, cut, flipped, ..");
}

// CHECKSUMS that is well made, but lies: a line of this name, for a file that is as it says.
static void count_lie(const char* name, const char* path) {
    size_t size;
    uint32_t crc = sum_of_file(at("damage/outside"), &size);
    char* line = xprintf("%s %zu %08x\n", name, size, crc);
    char* text = xprintf("%s# %zu %08x\n", line, strlen(line), crc32c_plain(line, strlen(line)));
    write_text(path, text);
    if (strcmp(name, "inside") == 0) count_here(checkpoint_is_whole(step_1), name);
    else count_broken(name);
    free(line), free(text);
}

// The file that vouches for the others, at every byte and bit.
static void check_damaged_sums(void) {
    char path[1300];
    size_t n;
    snprintf(path, sizeof(path), "%s/CHECKSUMS", step_1);
    char* data = read_file(path, &n);
    for (size_t i = 0; i < n; i++) {
        write_file(path, data, i);
        count_broken("CHECKSUMS cut off");
    }
    for (size_t bit = 0; bit < 8 * n; bit++) {
        data[bit / 8] ^= (char)(1 << bit % 8);
        write_file(path, data, n);
        count_broken("a bit of CHECKSUMS");
        data[bit / 8] ^= (char)(1 << bit % 8);
    }
    write_text(at("damage/outside"), "x");
    write_text(at("damage/step_000001/inside"), "x");
    const char* const names[] = {"inside", "../outside", at("damage/outside"), ".", "..", "", "no",
        "in side", "a_name_of_more_than_sixty-three_bytes,_which_no_file_of_ours_will_ever_have"};
    for (size_t i = 0; i < COUNT_OF(names); i++) count_lie(names[i], path);
    write_text(path, "# 0 00000000\n");
    count_broken("no files");
    free(data);
    close_family("checkpoint: CHECKSUMS cut, flipped, or lying");
}

// -------------------------------------------------------------------------------------------------
// The checkpoints of a folder: their order, the newest whole one, what is removed

// Nothing but "step_" and at least six digits, as they are written, is a checkpoint.
static void check_names(void) {
    const char* const names[] = {"step_", "step_abc", "step_-1", "step_-00001", "step_99999",
        "step_9", "step_0000009", "step_ 00001", "step_+00001", "step_000010.tmp",
        "step_000010.old", "step_000010 ", "step_00001a", "Step_000010", "step-000010",
        "xstep_000010", "step_1e6", "step_99999999999999999999", "step_9223372036854775807",
        "step_1000000000000",
        "old_000010.tmp", "broken_000010", "cooled_000010", "step_000010.bak"};
    const long long right[] = {999999999999, 1000000, 999999, 100, 10, 9, 0};
    long long steps[MOST_CHECKPOINTS];
    mkdir(at("names"), 0755);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        mkdir(at("names/%s", names[i]), 0755);
        count_here(checkpoint_list(at("names"), steps) == 0, names[i]);
    }
    close_family("checkpoint: names that only resemble one");
    for (int i = 0; i < 7; i++) mkdir(at("names/step_%06lld", right[i * 3 % 7]), 0755);
    int n = checkpoint_list(at("names"), steps);
    for (int i = 0; i < 7; i++) count_here(n == 7 && steps[i] == right[i], "numeric order");
    count_here(checkpoint_list(at("no such folder"), steps) == 0, "no folder");
    close_family("checkpoint: numeric order");
}

// More checkpoints than are listed, in rising, falling or mixed order: the newest stay, falling.
static void check_many_names(void) {
    enum { ALL = MOST_CHECKPOINTS + 50 };
    static long long steps[MOST_CHECKPOINTS];
    for (int order = 0; order < 3; order++) {
        int n = 0, wrong = 0;
        for (int i = 0; i < ALL; i++) {
            int step = order == 0 ? i : order == 1 ? ALL - 1 - i : i * 7919 % ALL;
            n = add_step(steps, n, step);
            wrong += n != (i < MOST_CHECKPOINTS ? i + 1 : MOST_CHECKPOINTS);
        }
        for (int k = 0; k < n; k++) wrong += steps[k] != ALL - 1 - k;
        count_here(wrong == 0, "an order");
    }
    write_text(at("file"), "");
    count_here(checkpoint_list(at("file"), steps) == -1, "a file");
    close_family("checkpoint: more than are listed");
}

static long long amount;  // what the next child is told: a step, bytes, or KiB

// Up to a step.
static void print_newest(const char* path) { printf("%lld\n", checkpoint_newest(path, amount)); }

// What print_newest must print for checkpoints of these steps, of which the bits of `whole` are.
static int newest_text(char* text, const long long* steps, int whole) {
    long long broken = 0;
    for (int i = 0; i < 3; i++) {
        if (steps[i] > amount) continue;
        if (whole >> i & 1) {
            sprintf(text, "%lld\n", steps[i]);
            return 0;
        }
        text += sprintf(text, "warning: %s/step_%06lld: not as its CHECKSUMS say, passed over\n",
            at("newest"), steps[i]);
        broken++;
    }
    if (broken == 0) sprintf(text, "-1\n");
    else sprintf(text, "error: %s: found %lld broken checkpoints, need a whole one\n", at("newest"),
        broken);
    return broken > 0 ? EXIT_RESUME : 0;
}

// Three checkpoints, each whole or broken, below any bound.
static void check_newest(void) {
    const long long steps[3] = {1000000, 10, 9}, bounds[] = {8, 9, 10, 999999, LLONG_MAX};
    for (int whole = 0; whole < 8; whole++) {
        remove_tree(at("newest"));
        mkdir(at("newest"), 0755);
        for (int i = 2; i >= 0; i--) {
            save_good(at("newest"), (int)steps[i]);
            if (!(whole >> i & 1)) unlink(at("newest/step_%06lld/vocab.json", steps[i]));
        }
        for (size_t b = 0; b < COUNT_OF(bounds); b++) {
            static char right[8192];
            amount = bounds[b];
            int code = newest_text(right, steps, whole);
            run_child(print_newest, at("newest"));
            count_case(outcome.code == code && strcmp(outcome.text, right) == 0, right);
        }
    }
    count_refused(print_newest, at("file"), EXIT_RESOURCES, "Not a directory", "a file");
    close_family("checkpoint: the newest whole one up to a step");
}

// Any set of steps, any number to keep, any step to spare; the others' names are no concern.
static void check_prune(void) {
    for (int round = 0; round < 50; round++) {
        char right[512] = "notes";
        uint64_t random = splitmix64((uint64_t)round);
        int keep = 1 + round % 4, spared = (int)(random >> 40) % 14 - 2, newest = -1, left = 0;
        remove_tree(at("prune"));
        mkdir(at("prune"), 0755);
        mkdir(at("prune/notes"), 0755);
        for (int step = 0; step < 12; step++) {
            if (!(random >> step & 1)) continue;
            mkdir(at("prune/step_%06d", step), 0755);
            write_text(at("prune/step_%06d/file", step), "");
            newest = step <= spared ? step : newest;
            left++;
        }
        for (int step = 0; step < 12; step++) {
            if (!(random >> step & 1)) continue;
            if (left-- > keep && step != newest) continue;
            sprintf(right + strlen(right), " step_%06d", step);
        }
        checkpoint_prune(at("prune"), keep, spared);
        count_here(lists(at("prune"), right), right);
    }
    close_family("checkpoint: which ones are removed");
}

// What a crash has left is removed when the next checkpoint is begun; nothing else is.
static void check_sweep(void) {
    const char* const names[] = {"step_000003.tmp", "step_000004.old", "step_1234567.tmp",
        "step_000003.tmp.bak", "step_3.tmp", "notes.tmp", "old_000003.tmp", "step_abcdef.old"};
    new_run("sweep");
    for (int i = 0; i < 8; i++) {
        mkdir(at("sweep/%s", names[i]), 0755);
        write_text(at("sweep/%s/.file", names[i]), "");
    }
    write_text(at("sweep/step_000005.tmp"), "a file");
    count_here(save_good(at("sweep"), 2) == 0, "saved");
    count_here(lists(at("sweep"), "notes.tmp old_000003.tmp step_000001 step_000002 "
        "step_000003.tmp.bak step_3.tmp step_abcdef.old"), listing(at("sweep")));
    close_family("checkpoint: what a crash has left");
}

// A step that is saved again: over a broken one, not over a whole one; and what was beyond it.
static void check_again(void) {
    new_run("again");
    struct stat before, after;
    stat(at("again/step_000001/CHECKSUMS"), &before);
    count_here(save_good(at("again"), 1) == EEXIST, "over a whole one");
    stat(at("again/step_000001/CHECKSUMS"), &after);
    count_here(before.st_ino == after.st_ino, "the same file as before");
    count_here(checkpoint_is_whole(at("again/step_000001")), "kept");
    unlink(at("again/step_000001/merges.txt"));
    count_here(save_good(at("again"), 1) == 0, "over a broken one");
    count_here(checkpoint_is_whole(at("again/step_000001")), "whole again");
    count_here(lists(at("again"), "step_000001"), "and the broken one is gone");
    write_text(at("again/step_000002"), "");
    count_here(save_good(at("again"), 2) == 0, "over a file");
    count_here(lists(at("again"), "step_000001 step_000002"), "and the file is gone");
    close_family("checkpoint: a step that is saved again");
}

// A child, since it warns.
static void save_5(const char* path) {
    if (save_good(path, 5)) _exit(DIFFERENT);
}

// Two broken ones beyond a step that is saved: kept under other names, so that they do not count.
static void check_beyond(void) {
    new_run("beyond");
    for (int step = 7; step <= 8; step++) mkdir(at("beyond/step_%06d", step), 0755);
    mkdir(at("beyond/broken_000007"), 0755);
    run_child(save_5, at("beyond"));
    count_case(outcome.code == SAME && strstr(outcome.text, "kept as"), "saved, with a warning");
    count_here(lists(at("beyond"), "broken_000007 broken_000008 step_000001 step_000005"), "aside");
    checkpoint_prune(at("beyond"), 1, -1);
    count_here(lists(at("beyond"), "broken_000007 broken_000008 step_000005"), "the newest stays");
    close_family("checkpoint: broken ones beyond the step that is saved");
}

// -------------------------------------------------------------------------------------------------
// Checkpoints that cannot be written: nothing of them is left, and the older ones are whole

// Saves step 2 beside step 1 under a fault. Where it fails, the error must come back, and the
// folder must be as it was (`names`); where it succeeds all the same, the checkpoint must be whole.
// Returns whether the fault struck at all.
static int count_fault(Call call, int nth, int from_then, int error, const char* names) {
    set_fault(call, nth, from_then, error);
    int result = save_good(at("fault"), 2), struck = fault.count >= nth;
    fault.at = 0;
    int whole = checkpoint_is_whole(at("fault/step_000002"));
    // The first rename moves a broken one away, if there is one: the second finds it still there.
    int moves = call == RENAME && nth == 1, error_back = moves ? ENOTEMPTY : error;
    int right = result ? result == error_back && !whole && lists(at("fault"), names)
                       : whole && lists(at("fault"), "step_000001 step_000002");
    int may_fail = (call == CLOSE && nth > N_FILES + 1) || (moves && strlen(names) == 11);
    right &= result || !struck || may_fail;
    count_here(right && checkpoint_is_whole(at("fault/step_000001")), "a call that fails");
    return struck;
}

// Removes step 2; or leaves a broken one there.
static const char* before_fault(int broken) {
    remove_tree(at("fault/step_000002"));
    if (!broken) return "step_000001";
    mkdir(at("fault/step_000002"), 0755);
    write_text(at("fault/step_000002/broken"), "");
    return "step_000001 step_000002";
}

// Every call of every kind fails, once or from then on, over a broken checkpoint or beside. There
// must be so many calls: an fsync and a close for each file, CHECKSUMS and the two folders, ..
static void check_faults(void) {
    const int errors[N_CALLS] = {ENOSPC, EIO, EACCES, EDQUOT, EMFILE, ENOSPC};
    const int calls[N_CALLS] = {19, N_FILES + 3, 2, N_FILES + 3, N_FILES + 3, 1};
    new_run("fault");
    for (int call = 0; call < N_CALLS; call++) {
        for (int broken = 0; broken < 2; broken++) {
            int nth = 1;
            while (count_fault((Call)call, nth, 0, errors[call], before_fault(broken))) nth++;
            count_here(nth - 1 == calls[call], "the number of calls");
        }
    }
    close_family("checkpoint: the n-th write, fsync, rename, .. fails");
    const Call lasting[] = {WRITE, FSYNC, OPEN, MKDIR};
    for (int i = 0; i < 4; i++) {
        int nth = 1;
        while (count_fault(lasting[i], nth, 1, ENOSPC, before_fault(nth % 2))) nth++;
    }
    close_family("checkpoint: all writes, fsyncs, .. fail from the n-th on");
}

// A save of step 2 that must go through in spite of the fault, with the same bytes as ever.
static int count_harmless(Call call, int nth, int error, int half, const char* how) {
    size_t size;
    char* sums = read_file(at("fault/step_000001/CHECKSUMS"), &size);
    before_fault(0);
    set_fault(call, nth, 0, error);
    fault.half = half;
    int result = save_good(at("fault"), 2), struck = fault.count >= nth;
    fault.at = 0;
    count_here(result == 0 && file_is(at("fault/step_000002/CHECKSUMS"), sums, size), how);
    free(sums);
    return struck;
}

// What is no failure, or only looks like success.
static void check_small_faults(void) {
    int nth = 1;
    while (count_harmless(WRITE, nth, EINTR, 0, "an interrupted write")) nth++;
    for (int i = 1; i < nth; i++) count_harmless(WRITE, i, 0, 1, "a write of half");
    // The fsyncs of the two folders come after those of the files.
    count_harmless(FSYNC, N_FILES + 2, EINVAL, 0, "a file system without fsync of folders");
    count_harmless(FSYNC, N_FILES + 3, EINVAL, 0, "a file system without fsync of folders");
    before_fault(0);
    set_fault(WRITE, 2, 0, 0);
    int result = save_good(at("fault"), 2);
    fault.at = 0;
    count_here(result == ENOSPC && lists(at("fault"), "step_000001"), "a write of nothing");
    close_family("checkpoint: short and interrupted writes");
}

static int expected_error;

// Saves step 2 where it does not fit, then step 3 when it does.
static void save_without_room(const char* path) {
    static Model model;
    fill_model(&model);
    int right = save(path, 2, &model) == expected_error && lists(path, "step_000001");
    if (!right || !checkpoint_is_whole(at("room/step_000001"))) _exit(DIFFERENT);
}

// So many bytes, and no more, fit into a file.
static void save_over_limit(const char* path) {
    struct rlimit limit = {(rlim_t)amount, (rlim_t)amount};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    save_without_room(path);
}

// A file system of its own in a child of its own, which takes it along when it ends. Step 1 and a
// filling of so many KiB are on it.
static void save_on_full_disk(const char* path) {
    static char filling[512 << 10];
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", path, "tmpfs", 0, "size=512k")) {
        _exit(NOT_HERE);
    }
    if (save_good(path, 1)) _exit(DIFFERENT);
    int fd = open(at("room/.filling"), O_WRONLY | O_CREAT, 0644);
    ssize_t filled = write(fd, filling, (size_t)amount << 10);
    close(fd);
    if (filled <= 0) _exit(DIFFERENT);
    save_without_room(path);
    unlink(at("room/.filling"));
    if (save_good(path, 3)) _exit(DIFFERENT);
    folder_need(path, 1 << 20);
}

// Limits below the largest file, and disks on which the second checkpoint does not fit.
static void check_room(void) {
    const int limits[] = {0, 1, 8, 100, 400, 700};
    new_run("room");
    expected_error = EFBIG;
    for (int i = 0; i < 6; i++) {
        amount = limits[i];
        run_child(save_over_limit, at("room"));
        count_case(outcome.code == SAME, "a limit on the size of files");
    }
    remove_tree(at("room/step_000001"));
    expected_error = ENOSPC;
    for (int kib = 460; kib <= 512; kib += 4) {
        amount = kib;
        run_child(save_on_full_disk, at("room"));
        if (outcome.code == NOT_HERE) continue;
        count_case(is_error(EXIT_RESOURCES, at("room"), "need 1.0 for checkpoints"), "a full disk");
    }
    if (outcome.code == NOT_HERE) printf("    skipped: a full disk, for which one must mount\n");
    close_family("checkpoint: no room");
}

static void make_folder(const char* path) { folder_make(path); }

// Folders are made with all above them, and no name is cut off.
static void check_folders(void) {
    const char* const good[] = {"made", "made/a/b/c", "made//d///e/", "made/a/b", "made/../made/f"};
    for (int i = 0; i < 5; i++) {
        folder_make(at("%s", good[i]));
        count_here(mode_of(at("%s", good[i])) > 0, good[i]);
    }
    count_here(lists(at("made"), "a d f") && lists(at("made/a/b"), "c"), "no others");
    write_text(at("made/file"), "");
    count_refused(make_folder, at("made/file"), EXIT_RESOURCES, "Not a directory", "a file");
    run_child(make_folder, at("made/file/g"));
    count_case(is_error(EXIT_RESOURCES, at("made/file/g"), "Not a directory"), "below a file");
    run_child(make_folder, "/proc/none");
    count_case(outcome.code == EXIT_RESOURCES, "where none can be made");
    folder_need(folder, 1);
    // A path that is too long for a file's name behind it. Cut off, it would be the folder above.
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", at("long"));
    while (strlen(path) < PATH_MAX - 65) {
        size_t left = PATH_MAX - 65 - strlen(path), length = left > 202 ? 200 : left - 1;
        snprintf(path + strlen(path), sizeof(path) - strlen(path), "/%0*d", (int)length, 0);
    }
    folder_make(path);
    strcat(path, "/keep");
    write_text(path, "");
    strcpy(strrchr(path, '/'), "/x");
    folder_make(path);
    count_here(save_good(path, 1) == ENAMETOOLONG && lists(path, ""), "a path that is too long");
    strcpy(strrchr(path, '/'), "/keep");
    count_here(access(path, F_OK) == 0, "nothing else is removed");
    close_family("checkpoint: folders made, and too long a path");
}

// -------------------------------------------------------------------------------------------------
// The log

static double log_clock;

// Opens a log that is text, for going on behind a step, and returns whether it becomes `right`.
static int log_becomes(const char* text, long long step, const char* right, double clock) {
    mkdir(at("log"), 0755);
    write_text(at("log/log.tsv"), text);
    FILE* log = log_open(at("log"), step, &log_clock);
    fclose(log);
    return file_is(at("log/log.tsv"), right, strlen(right)) && log_clock == clock;
}

// For what ends the process.
static void open_log(const char* path) { log_open(path, 1, &log_clock); }

// Rows are in the file at once, in the columns that the header names; a resumed run goes on there.
static void check_log_rows(void) {
    remove_tree(at("log"));
    mkdir(at("log"), 0755);
    FILE* log = log_open(at("log"), 0, &log_clock);
    LogRow train = {12, 3072, "train", 1.23456789, 0.5, 2.5, 1e-3, 0.02, 1.5};
    LogRow val = {12, 3072, "val", 4, -1, 0, 0, 0, 1.5};
    log_write(log, &train);
    log_write(log, &val);
    const char* right = LOG_HEADER
        "12\ttrain\t1.2345679\t0.5000000\t2.5\t0.001\t0.02\t3072\t1.500\n"
        "12\tval\t4.0000000\t-\t-\t-\t-\t3072\t1.500\n";
    count_here(file_is(at("log/log.tsv"), right, strlen(right)), "rows, without waiting");
    fclose(log);
    count_here(log_clock == 0 && lists(at("log"), "log.tsv"), "no other file");
    log = log_open(at("log"), 12, &log_clock);
    train.step = 13;
    log_write(log, &train);
    fclose(log);
    count_here(has(at("log/log.tsv"), "1.500\n13\ttrain\t"), "goes on behind the step");
    count_here(!has(at("log/log.tsv"), "val"), "the validation of the step is made again");
    run_child(open_log, at("missing"));
    count_case(is_error(EXIT_RESOURCES, at("missing/log.tsv.tmp"), "No such file"), "no folder");
    close_family("log: rows");
}

// Three rows that cannot be written.
static void write_to_full_disk(const char* path) {
    FILE* log = fopen(path, "w");
    LogRow row = {1, 256, "train", 5, -1, 1, 1, 1, 0.5};
    for (int i = 0; i < 3; i++) log_write(log, &row);
}

// Neither ends the run nor fills the terminal.
static void check_full_log(void) {
    run_child(write_to_full_disk, "/dev/full");
    count_case(outcome.code == SAME && strncmp(outcome.text, "warning: log.tsv: ", 18) == 0 &&
        strchr(outcome.text, '\n') == outcome.text + outcome.n - 1, "one warning for three rows");
    close_family("log: a full disk");
}

#define ROW(step, split, seconds) step "\t" split "\t3.5\t-\t1\t0.1\t0.2\t64\t" seconds "\n"

// What of a log stays when a run goes on from step 2.
static void check_log_copy(void) {
    const struct {
        const char *text, *kept;
        double clock;
    } cases[] = {
        {"", "", 0},
        {LOG_HEADER, "", 0},
        {ROW("1", "train", "0.5"), ROW("1", "train", "0.5"), 0.5},
        {ROW("2", "train", "0.5"), ROW("2", "train", "0.5"), 0.5},
        {ROW("3", "train", "0.5"), "", 0},
        {ROW("1", "val", "0.25"), ROW("1", "val", "0.25"), 0.25},
        {ROW("2", "val", "0.25"), "", 0},
        {ROW("1", "train", "1") ROW("2", "train", "2") ROW("2", "val", "2") ROW("3", "train", "3"),
            ROW("1", "train", "1") ROW("2", "train", "2"), 2},
        // Half a line, wherever it was cut, and lines that are none.
        {ROW("1", "train", "1") "2\ttrain\t3.5\t-\t1\t0.1\t0.2\t64\t0.5", ROW("1", "train", "1"),
            1},
        {ROW("1", "train", "1") "2\ttr", ROW("1", "train", "1"), 1},
        {ROW("1", "train", "1") "2", ROW("1", "train", "1"), 1},
        {"1\ttrain\n" ROW("2", "train", "2"), ROW("2", "train", "2"), 2},
        {"1\ttrain\t3.5\n" ROW("2", "train", "2"), ROW("2", "train", "2"), 2},
        {"\n\n" ROW("2", "train", "2"), ROW("2", "train", "2"), 2},
        {"junk\n" ROW("x", "train", "1") ROW("2", "train", "2"), ROW("2", "train", "2"), 2},
        {ROW("2", "a long word", "1"), "", 0},
        {ROW("99999999999999999999", "train", "1"), "", 0},
        {ROW("2", "train", "x"), "", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char* right = xprintf("%s%s", LOG_HEADER, cases[i].kept);
        char* text = xprintf("%s%s", LOG_HEADER, cases[i].text);
        count_here(log_becomes(text, 2, right, cases[i].clock), cases[i].text);
        count_here(log_becomes(cases[i].text, 2, right, cases[i].clock), cases[i].text);
        count_here(log_becomes(text, 0, LOG_HEADER, 0), "a new run's log");
        free(right), free(text);
    }
    close_family("log: what a resumed run keeps");
}

// -------------------------------------------------------------------------------------------------
// Questions: files of them

enum { EVAL_V = 100, MOST_WORDS = 4096 };
typedef enum { MARK, BYTES, INDEX, LABEL, ENDINGS, LENGTH, TOKEN } Word;

static uint16_t words[512 + MOST_WORDS];  // a file of questions: its header, then its words
static Word kinds[512 + MOST_WORDS];      // and what each of them is
static int n_words;

static void put_word(int value, Word kind) {
    words[n_words] = (uint16_t)value;
    kinds[n_words++] = kind;
}

// A count and so many tokens, at random.
static void put_tokens(int n, uint64_t seed) {
    put_word(n, LENGTH);
    for (int i = 0; i < n; i++) {
        put_word((int)(splitmix64(seed + (uint64_t)i) % EVAL_V), TOKEN);
    }
}

// One example; lengths: of the context, then of the endings.
static void put_question(int index, int label, int n_endings, const int* lengths) {
    int begin = n_words;
    put_word(EVAL_START, MARK);
    put_word(0, BYTES);
    put_word(index, INDEX);
    put_word(label, LABEL);
    put_word(n_endings, ENDINGS);
    for (int i = 0; i <= n_endings; i++) put_tokens(lengths[i], (uint64_t)(index * 1000 + i * 100));
    words[begin + 1] = (uint16_t)(2 * (n_words - begin));
}

// A file of n examples, which the caller adds.
static void begin_questions(int n) {
    const int32_t header[4] = {20240522, 1, n, 0};
    memset(words, 0, sizeof(words));
    memcpy(words, header, sizeof(header));
    n_words = 512;
}

static void write_questions(const char* path) { write_file(path, words, 2 * (size_t)n_words); }

// Reads all questions: together they must be the file, word for word, but for the indices, which
// nobody needs.
static void read_questions(const char* path) {
    Questions q = questions_open(path, EVAL_V);
    const uint16_t *file = (const uint16_t*)(const void*)q.text, *w = file + 512;
    size_t longest = 0;
    for (int i = 0; i < q.n_examples; i++) {
        const uint16_t* begin = w;
        Question x = questions_next(&q);
        int same = w[0] == 65535 && w[3] == x.label && w[4] == x.n_endings && x.label < x.n_endings;
        same &= w[5] == x.n_context && x.context == w + 6;
        w += 6 + x.n_context;
        for (int e = 0; e < x.n_endings; e++) {
            same &= *w == x.n_ending[e] && x.ending[e] == w + 1;
            w += 1 + x.n_ending[e];
            size_t length = (size_t)(x.n_context + x.n_ending[e]);
            longest = length > longest ? length : longest;
        }
        if (!same || begin[1] != 2 * (w - begin)) _exit(DIFFERENT);
    }
    if (w != q.end || q.at != q.end || longest != q.longest) _exit(DIFFERENT);
    free(q.text);
}

// Numbers of endings 4, 2, 3, which may_be knows, and lengths of 1 to 5.
static void put_three_questions(void) {
    const int lengths[3][5] = {{3, 1, 2, 3, 1}, {1, 2, 2, 0, 0}, {5, 1, 1, 1, 0}};
    begin_questions(3);
    put_question(0, 2, 4, lengths[0]);
    put_question(1, 1, 2, lengths[1]);
    put_question(2, 0, 3, lengths[2]);
}

// Whether a file may have this value in place of a word.
static int may_be(int place, int value) {
    const int n_endings[3] = {4, 2, 3};
    int example = -1;
    if (words[place] == value || kinds[place] == INDEX) return 1;
    for (int i = 512; i <= place; i++) example += kinds[i] == MARK;
    return (kinds[place] == TOKEN && value < EVAL_V) ||
        (kinds[place] == LABEL && value < n_endings[example]);
}

// Reads the questions as they are now: without complaint where they are good, else refused.
static void count_questions(int good, const char* what) {
    write_questions(at("words"));
    run_child(read_questions, at("words"));
    count_case(good ? outcome.code == SAME : is_error(EXIT_INPUT, at("words"), ", need "), what);
}

// Every word of the examples becomes each of these values.
static void check_question_words(void) {
    const uint16_t values[] = {0, 1, 3, 16, EVAL_V - 1, EVAL_V, 65534, 65535};
    put_three_questions();
    for (int place = 512; place < n_words; place++) {
        for (size_t i = 0; i < COUNT_OF(values); i++) {
            int good = may_be(place, values[i]);
            uint16_t before = words[place];
            words[place] = values[i];
            count_questions(good, "a word of an example");
            words[place] = before;
        }
    }
    close_family("questions: every word of the examples replaced");
}

// Every word of the header becomes some of these numbers; of the first four, each of them.
static void check_question_headers(void) {
    const int32_t numbers[] = {0, 1, 2, 3, 4, 65534, 65535, -1, INT_MAX, INT_MIN, 20240520};
    for (int place = 0; place < 256; place++) {
        for (size_t i = place < 4 ? 0 : 9; i < COUNT_OF(numbers); i++) {
            int32_t before;
            memcpy(&before, words + 2 * place, 4);
            memcpy(words + 2 * place, &numbers[i], 4);
            // Nobody needs the longest example's size, nor the words behind it.
            count_questions(place >= 3 || numbers[i] == before, "a word of the header");
            memcpy(words + 2 * place, &before, 4);
        }
    }
    close_family("questions: every word of the header replaced");
}

// Cut off, longer, with too few or too many endings.
static void check_question_files(void) {
    put_three_questions();
    for (int n = 0; n <= 2 * n_words + 64; n += STEP) {
        write_file(at("cut"), words, (size_t)n);
        run_child(read_questions, at("cut"));
        int right = n == 2 * n_words ? outcome.code == SAME
                                     : is_error(EXIT_INPUT, at("cut"), ", need ");
        count_case(right, "cut off, or longer");
    }
    close_family("questions: cut off at every byte, trailing bytes");
    int lengths[MOST_ENDINGS + 1];
    for (int n = 0; n <= MOST_ENDINGS + 1; n++) {
        for (int i = 0; i <= n && i <= MOST_ENDINGS; i++) lengths[i] = 1 + i;
        begin_questions(1);
        if (n <= MOST_ENDINGS) put_question(7, n - 1, n, lengths);
        count_questions(n >= 1 && n <= MOST_ENDINGS, "a number of endings");
    }
    count_kinds(read_questions);
    count_refused(read_questions, at("missing"), EXIT_INPUT, "No such file", "no file");
    close_family("questions: numbers of endings, what is no file");
}

// -------------------------------------------------------------------------------------------------
// Questions: answers. The model is a table: a target costs what it costs behind its input.

enum { N_QUESTIONS = 60, MOST_ROWS = 8, MOST_T = 64 };

static struct {
    int B, T, inputs[MOST_ROWS * MOST_T], targets[MOST_ROWS * MOST_T], runs, faults;
    float losses[MOST_ROWS * MOST_T];
    volatile sig_atomic_t stop;
    int stop_after;  // runs
} oracle;

// Nats; a multiple of 1/64, so that sums are exact in any order.
static float cost(int input, int target) {
    return (float)(splitmix64((uint64_t)(input * 256 + target)) % 1000) / 64;
}

// A row is text as long as it goes, one place apart in inputs and targets, then zeros.
static void run_oracle(void* owner) {
    (void)owner;
    for (int i = 0; i < oracle.B * oracle.T; i++) {
        int is_last = i % oracle.T == oracle.T - 1;
        int x = oracle.inputs[i], y = oracle.targets[i];
        oracle.faults += x < 0 || x >= EVAL_V || y < 0 || y >= EVAL_V;
        oracle.faults += !is_last && y != oracle.inputs[i + 1] && oracle.inputs[i + 1] != 0;
        oracle.losses[i] = cost(x, y);
    }
    if (++oracle.runs == oracle.stop_after) oracle.stop = SIGTERM;
}

// The index of the ending with the least sum or mean over its tokens, as far as they are among the
// last T targets.
static int best_ending(const Question* x, int T, int by_mean) {
    double least = INFINITY;
    int best = -1;
    for (int e = 0; e < x->n_endings; e++) {
        int n = x->n_context + x->n_ending[e], first = x->n_context > n - T ? x->n_context : n - T;
        double sum = 0;
        for (int i = first; i < n; i++) {
            const uint16_t* ending = x->ending[e] - x->n_context;
            int before = i - 1 < x->n_context ? x->context[i - 1] : ending[i - 1];
            sum += cost(before, ending[i]);
        }
        double value = by_mean ? sum / (n - first) : sum;
        if (value < least) best = e;
        least = value < least ? value : least;
    }
    return best;
}

// What questions_answer must print when it is asked n questions.
static void right_answers(char text[256], const char* path, int T, int n) {
    Questions q = questions_open(path, EVAL_V);
    int right = 0, right_by_mean = 0;
    for (int i = 0; i < n; i++) {
        Question x = questions_next(&q);
        right += best_ending(&x, T, 0) == x.label;
        right_by_mean += best_ending(&x, T, 1) == x.label;
    }
    free(q.text);
    double percent = 100.0 / (n > 0 ? n : 1);
    snprintf(text, 256,
        "questions   %.2f %% right by mean loss, %.2f %% by summed loss, of %d in %s\n",
        percent * right_by_mean, percent * right, n, path);
}

// With a model of B rows and T places, which looks at what it is given.
static void answer_questions(const char* path) {
    Scorer scorer;
    memset(&scorer, 0, sizeof(scorer));
    scorer.B = oracle.B;
    scorer.T = oracle.T;
    scorer.inputs = oracle.inputs;
    scorer.targets = oracle.targets;
    scorer.losses = oracle.losses;
    scorer.run = run_oracle;
    scorer.stop = &oracle.stop;
    Questions q = questions_open(path, EVAL_V);
    questions_answer(&q, &scorer);
    if (oracle.faults) _exit(DIFFERENT);
}

// Rows may be more or fewer than endings, and shorter than contexts, than endings, than both.
static void check_answers(void) {
    char right[256];
    begin_questions(N_QUESTIONS);
    for (int i = 0; i < N_QUESTIONS; i++) {
        int n_endings = 1 + i % 5, lengths[6];
        for (int k = 0; k <= n_endings; k++) {
            lengths[k] = 1 + (int)(splitmix64((uint64_t)(i * 10 + k)) % (k > 0 ? 7 : 12));
        }
        put_question(i, (int)(splitmix64((uint64_t)i) % (uint64_t)n_endings), n_endings, lengths);
    }
    write_questions(at("questions"));
    const int lengths[] = {1, 2, 3, 5, 8, 17, 18, MOST_T};
    for (oracle.B = 1; oracle.B <= MOST_ROWS; oracle.B += 1 + (oracle.B > 4)) {
        for (int i = 0; i < 8; i++) {
            oracle.T = lengths[i];
            right_answers(right, at("questions"), oracle.T, N_QUESTIONS);
            run_child(answer_questions, at("questions"));
            count_case(outcome.code == SAME && strcmp(outcome.text, right) == 0, right);
        }
    }
    close_family("questions: answers by batches of 1 to 8, any T");
    oracle.B = 8;  // one run a question
    for (oracle.stop_after = 0; oracle.stop_after < 4; oracle.stop_after++) {
        oracle.stop = oracle.stop_after == 0 ? SIGINT : 0;
        right_answers(right, at("questions"), oracle.T, oracle.stop_after);
        run_child(answer_questions, at("questions"));
        count_case(outcome.code == SAME && strcmp(outcome.text, right) == 0, right);
    }
    close_family("questions: a signal ends the asking");
}

// -------------------------------------------------------------------------------------------------
// The floor, and sampling

// Of a text of five tokens.
static void read_floor(const char* path) { free(floor_read(path, 5)); }

// Nothing but rows of numbers as we write them, in rising order.
static void check_floor(void) {
    const char* const good[] = {"", "0\t0\n", "0\t1\n1\t0.25\n4\t1e-05\n", "3\t1.23456789e+05\n",
        "4\t999999\n", "2\t0.\n"};
    const char* const bad[] = {"5\t1\n", "4294967296\t1\n", "18446744073709551615\t1\n",
        "18446744073709551616\t1\n", "-1\t1\n", "+1\t1\n", " 1\t1\n", "1 1\n", "1\t\n", "1\n",
        "1\t1", "1\t1\r\n", "1\t1 \n", "1\t 1\n", "1\t\n2\n", "1\t\n2\t1\n", "1\t-1\n", "1\t+1\n",
        "1\t1e6\n", "1\t1e99\n", "1\tnan\n", "1\tinf\n", "1\t0x1\n", "1\t1.0.0\n", "1\t1e\n", "\n",
        "\n1\t1\n", "1\t1\n\n", "1\t1\n1\t1\n", "2\t1\n1\t1\n", "1.0\t1\n", "0x1\t1\n", "junk\n",
        "1\t1\t1\n", "token\tnats\n", "1,1\n", "1\t1,5\n"};
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        char* text = xprintf("token\tnats\n%s", good[i]);
        write_text(at("floor"), text);
        float* nats = floor_read(at("floor"), 5);
        const float right[6][5] = {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 0.25f, 0, 0, 1e-5f},
            {0, 0, 0, 123456.789f, 0}, {0, 0, 0, 0, 999999}, {0, 0, 0, 0, 0}};
        count_here(memcmp(nats, right[i], sizeof(right[i])) == 0, good[i]);
        free(nats), free(text);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char* text = xprintf("token\tnats\n%s", bad[i]);
        write_text(at("floor"), text);
        count_refused(read_floor, at("floor"), EXIT_INPUT, ", need a token from ", bad[i]);
        free(text);
    }
    const char* const headers[] = {"", "\n", "0\t1\n", "token\tnats", "token nats\n",
        "offset\tnats\n"};
    for (int i = 0; i < 6; i++) {
        write_text(at("floor"), headers[i]);
        count_refused(read_floor, at("floor"), EXIT_INPUT, "need the header", headers[i]);
    }
    write_file(at("floor"), "token\tnats\n1\t1\n\0\0", 17);
    count_refused(read_floor, at("floor"), EXIT_INPUT, ", need a token from 2 on", "zero bytes");
    count_here(floor_read(at("missing"), 5) == NULL, "no file");
    count_kinds(read_floor);
    close_family("floor: rows good and bad");
}

// Largest distance between the probabilities of a softmax and the shares of 100,000 draws, which
// take u evenly from [0,1), so that a share is off by a draw or two.
static double sampling_error(const float* logits, int V, double temperature, int k) {
    enum { DRAWS = 100000 };
    float p[16];
    double shares[16] = {0}, exact[16], sum = 0, worst = 0;
    for (int i = 0; i < DRAWS; i++) {
        int token = sample_token(logits, p, V, temperature, k, (i + 0.5) / DRAWS);
        if (token < 0 || token >= V) return 1;
        shares[token] += 1.0 / DRAWS;
    }
    for (int v = 0; v < V; v++) {
        int larger = 0;  // than this one: it is drawn when there are fewer than k
        for (int w = 0; w < V; w++) larger += logits[w] > logits[v];
        exact[v] = k > 0 && larger >= k ? 0 : exp(((double)logits[v] - 95) / temperature);
        sum += exact[v];
    }
    for (int v = 0; v < V; v++) worst = fmax(worst, fabs(shares[v] - exact[v] / sum));
    return worst;
}

// Logits near 95, where exp overflows a float; every k around their number.
static void check_shares(void) {
    static float logits[16];
    const double temperatures[] = {0.25, 1, 10};
    const int most[] = {0, 1, 2, 7, 15, 16, 17, 1000000};
    const float edges[4] = {94, -INFINITY, 95, -INFINITY}, equal[4] = {1, 2, 2, 2};
    char what[64];
    for (int i = 0; i < 16; i++) logits[i] = 95 - (float)(splitmix64((uint64_t)i) % 1000) / 250;
    for (int i = 0; i < 24; i++) {
        double temperature = temperatures[i % 3];
        int k = most[i / 3];
        double error = sampling_error(logits, 16, temperature, k);
        snprintf(what, sizeof(what), "temperature %g, top-k %d: off by %g", temperature, k, error);
        count_here(error <= 3e-5, what);
    }
    count_here(sampling_error(edges, 4, 1, 0) <= 3e-5, "95 and 94, and what is impossible");
    count_here(sampling_error(edges, 4, 1, 3) <= 3e-5, "fewer possible ones than k");
    count_here(sampling_error(equal, 4, 1, 2) <= 3e-5, "those that equal the last stay in");
    close_family("sampling: shares of 100,000 draws");
}

// Draws of which the outcome is certain.
static void check_draws(void) {
    static float logits[65536], p[65536];
    const float edges[4] = {94, -INFINITY, 95, -INFINITY};
    for (int i = 0; i < 10; i++) {
        double u = i / 10.0;
        count_here(sample_token(edges, p, 4, 0, i, u) == 2, "temperature 0");
        count_here(sample_token(edges, p, 4, 1e-9, i, u) == 2, "a temperature of almost 0");
        count_here(sample_token(edges, p, 4, 5, 1, u) == 2, "the likeliest alone");
    }
    count_here(sample_token(edges, p, 4, 1, 0, 0) == 0, "the least u");
    count_here(sample_token(edges, p, 4, 1, 0, 1 - DBL_EPSILON / 2) == 2, "the largest u");
    for (int i = 0; i < 65536; i++) logits[i] = -88;
    for (int i = 0; i < 65536; i += 4321) {
        double u = (i + 0.5) / 65536;
        count_here(sample_token(logits, p, 65536, 1, 0, u) == i, "a large vocabulary");
    }
    close_family("sampling: edges");
}

// -------------------------------------------------------------------------------------------------
// The command line

typedef struct {
    long long steps, warmup;
    double rate, clip, muon_rate;
    const char *text, *empty, *shape;
    int resume, help;
} TestOptions;

#define OPTION(field, letter, kind, value, low, high, help) \
    {#field, letter, kind, offsetof(TestOptions, field), value, low, high, help}

static const Option option_rows[] = {
    OPTION(steps, 'x', COUNT, "500", 0, 9e15, "a whole number"),
    OPTION(warmup, 'u', COUNT, "auto", 1, 1000, "a whole number, or auto"),
    OPTION(rate, 'l', REAL, "0.1", -DBL_MAX, DBL_MAX, "any number"),
    OPTION(clip, 0, REAL, "auto", 0, 1, "a fraction, or auto"),
    OPTION(muon_rate, 0, REAL, "0.02", 0, 10, "a name of two words"),
    OPTION(text, 't', TEXT, "words", 0, 0, "any text"),
    OPTION(empty, 0, TEXT, "", 0, 0, "any text"),
    OPTION(shape, 'k', CHOICE, "wsd", 0, 0, "wsd|cosine|linear: which one"),
    OPTION(resume, 'y', FLAG, "", 0, 0, "a flag"),
    OPTION(help, 'h', FLAG, "", 0, 0, "another"),
};

static TestOptions options;   // what has been parsed,
static OptionTable table;     // by this table,
static char* arguments[16];   // from these arguments,
static int n_plain;           // so many of which were no options

// Parses arguments that are given with a '|' between them.
static void parse(const char* line) {
    static char copy[4096];
    OptionTable fresh = {option_rows, (int)COUNT_OF(option_rows), &options, {0}};
    int n_arguments = 0;
    snprintf(copy, sizeof(copy), "program|%s", line);
    for (char *p = copy, *next; p; p = next) {
        next = strchr(p, '|');
        if (next) *next++ = 0;
        arguments[n_arguments++] = p;
    }
    table = fresh;
    memset(&options, 0xff, sizeof(options));
    n_plain = options_parse(&table, n_arguments, arguments);
}

static int is(const char* a, const char* b) { return strcmp(a, b) == 0; }

// Both ways to give a value, letters, defaults, plain arguments in between.
static void check_good_lines(void) {
    parse("");
    count_here(options.steps == 500 && options.warmup == AUTO && options.rate == 0.1, "defaults");
    count_here(isnan(options.clip) && is(options.text, "words"), "defaults");
    count_here(is(options.empty, "") && is(options.shape, "wsd"), "defaults");
    count_here(!options.resume && !options.help, "defaults");
    const char* const lines[] = {"--steps|7", "--steps=7", "-x|7", "-x=7", "--steps|3|--steps|7",
        "--resume|--steps|7|--help", "--steps|007", "--steps|+7"};
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        parse(lines[i]);
        count_here(options.steps == 7 && option_given(&table, "steps") &&
            !option_given(&table, "rate") && options.resume == (i == 5), lines[i]);
    }
    parse("--steps|9000000000000000|--warmup|auto|--clip|auto|--muon-rate|1e-3");
    count_here(options.steps == 9000000000000000 && options.warmup == AUTO, "the largest, auto");
    count_here(isnan(options.clip) && options.muon_rate == 1e-3, "auto, a name of two words");
    count_here(option_given(&table, "muon_rate") && !option_given(&table, "nothing"), "given");
    parse("--warmup|1|--clip|1|--rate|-2.5E+3|-k|linear");
    count_here(options.warmup == 1 && options.clip == 1 && options.rate == -2500, "bounds");
    count_here(is(options.shape, "linear"), "the last of the choices");
    parse("--rate|.5|--text|-1|--empty=");
    count_here(options.rate == 0.5 && is(options.text, "-1") && is(options.empty, ""), "texts");
    parse("--text=--steps=7|--empty=a=b");
    count_here(is(options.text, "--steps=7") && is(options.empty, "a=b"), "a text with --, =");
    parse("one|-y|two|-x|7|-||three");
    count_here(n_plain == 5 && options.steps == 7 && options.resume == 1, "plain arguments");
    count_here(is(arguments[0], "one") && is(arguments[1], "two") && is(arguments[2], "-") &&
        is(arguments[3], "") && is(arguments[4], "three"), "in order, at the front");
    close_family("options: lines that are right");
}

typedef struct {
    const char *line, *where, *found;
} BadLine;

// Each must end the process with code 2, the place, and what is needed.
static void check_lines(const char* name, const BadLine* lines, size_t n) {
    for (const BadLine* bad = lines; bad < lines + n; bad++) {
        run_child(parse, bad->line);
        count_case(is_error(EXIT_USAGE, bad->where, bad->found), bad->line);
    }
    close_family(name);
}

// What is no number, for every kind of number.
static void check_junk(void) {
    const char* const junk[] = {"12x", "0x10", "", " 5", "5 ", "\t5", "\n5", "x", "-", "+", "--5",
        "1,5", "1e999", "-1e999", "nan", "NAN", "-nan", "inf", "-inf", "infinity", "auto ", "Auto",
        "1e", "e5", "1e+", "1.2.3", "5;", "0x1p3", "1_000", "5\r"};
    const char* const names[] = {"steps", "warmup", "clip", "rate"};
    for (size_t i = 0; i < 4 * COUNT_OF(junk); i++) {
        char *line = xprintf("--%s=%s", names[i % 4], junk[i / 4]);
        char* where = xprintf("--%s", names[i % 4]);
        run_child(parse, line);
        count_case(is_error(EXIT_USAGE, where, "need a"), line);
        free(line), free(where);
    }
    close_family("options: what is no number");
}

// Beyond the bounds, of another kind, or no choice; the bounds and choices are named.
static void check_bad_values(void) {
    const BadLine lines[] = {
        {"--steps|1.5", "--steps", "found '1.5', need a whole number from 0 to 9e+15"},
        {"--steps|1e3", "--steps", "found '1e3', need a whole number"},
        {"--steps|auto", "--steps", "found 'auto', need a whole number from 0 to 9e+15\n"},
        {"--rate|auto", "--rate", "found 'auto', need a number"},
        {"--steps|-1", "--steps", "found '-1'"},
        {"--steps|9000000000000001", "--steps", "found '9000000000000001'"},
        {"--steps|9223372036854775807", "--steps", "found '9223372036854775807'"},
        {"--steps|18446744073709551617", "--steps", "found '18446744073709551617'"},
        {"--steps|99999999999999999999999999999999999999999999", "--steps", "found '99999999999"},
        {"--warmup|-1", "--warmup", "need a whole number from 1 to 1000, or auto"},
        {"--warmup|0", "--warmup", "found '0'"},
        {"--warmup|1001", "--warmup", "found '1001'"},
        {"--clip|1.0000001", "--clip", "need a number from 0 to 1, or auto"},
        {"--clip|-1e-9", "--clip", "found '-1e-9'"},
        {"-k|wsdx", "--shape", "found 'wsdx', need one of wsd|cosine|linear\n"},
        {"-k|ws", "--shape", "found 'ws'"},
        {"-k=", "--shape", "found ''"},
        {"-k|WSD", "--shape", "found 'WSD'"},
        {"-k|which", "--shape", "found 'which'"},
        {"-k=wsd,cosine", "--shape", "found 'wsd,cosine'"},
    };
    check_lines("options: values that are wrong", lines, COUNT_OF(lines));
}

// Unknown names are told the nearest one; a value lacks, or is there where none may be.
static void check_bad_names(void) {
    const BadLine lines[] = {
        {"--stpes|5", "--stpes", "need --steps, the nearest"},
        {"--step=5", "--step=5", "need --steps, the nearest"},
        {"--steps5", "--steps5", "need --steps, the nearest"},
        {"--muon_rate|1", "--muon_rate", "need --muon-rate, the nearest"},
        {"--muonrate|1", "--muonrate", "need --muon-rate, the nearest"},
        {"--Text|a", "--Text", "need --text, the nearest"},
        {"--shapes|wsd", "--shapes", "need --shape, the nearest"},
        {"--colour|1", "--colour", "the nearest"},
        {"--|5", "--", "need one of --help"},
        {"--=5", "--=5", "need one of --help"},
        {"-z|5", "-z", "need one of --help"},
        {"-X|5", "-X", "need one of --help"},
        {"-x5", "-x5", "the nearest"},
        {"-steps|5", "-steps", "need --steps, the nearest"},
        {"---steps|5", "---steps", "need --steps, the nearest"},
        {"-=5", "-=5", "the nearest"},
        {"--steps\n|5", "--steps?", "the nearest"},
        {"--steps", "--steps", "found no value, need one"},
        {"-x", "-x", "found no value, need one"},
        {"--text", "--text", "found no value, need one"},
        {"--text|--resume", "--text", "found no value, need one"},
        {"--steps|--text|a", "--steps", "found no value, need one"},
        {"--resume=1", "--resume=1", "found a value, need none"},
        {"--resume=", "--resume=", "found a value, need none"},
        {"-y=0", "-y=0", "found a value, need none"},
    };
    check_lines("options: names that are wrong, values that lack", lines,
        COUNT_OF(lines));
    char* name = xprintf("--%01000d", 0);
    run_child(parse, name);
    count_case(is_error(EXIT_USAGE, name, "the nearest"), "a name of 1,000 letters");
    free(name);
    close_family("options: a long name");
}

// Help goes to stdout, which a child gives back.
static void print_help(const char* path) {
    (void)path;
    parse("");
    options_print_help(&table);
}

// A line an option, defaults in brackets, flags and empty ones without.
static void check_help(void) {
    run_child(print_help, "");
    count_case(outcome.code == SAME, "help");
    const char* const lines[] = {"  -x --steps              a whole number [500]\n",
        "     --clip               a fraction, or auto [auto]\n",
        "  -y --resume             a flag\n",
        "     --muon-rate          a name of two words [0.02]\n",
        "     --empty              any text\n", "wsd|cosine|linear: which one [wsd]\n"};
    for (int i = 0; i < 6; i++) count_case(strstr(outcome.text, lines[i]) != NULL, lines[i]);
    close_family("options: help");
}

// -------------------------------------------------------------------------------------------------
// Settings in a file

// Saves the options as they are, and restores them over a command line. In a child, since the text
// of a settings file stays in memory.
static void save_and_restore(const char* line) {
    TestOptions before = options;
    options_save(&table, at("settings"));
    parse(line);
    options_restore(&table, at("settings"));
    int same = options.steps == before.steps && options.warmup == before.warmup &&
        memcmp(&options.rate, &before.rate, sizeof(double)) == 0 &&
        memcmp(&options.muon_rate, &before.muon_rate, sizeof(double)) == 0 &&
        (options.clip == before.clip || (isnan(options.clip) && isnan(before.clip))) &&
        is(options.text, before.text) && is(options.empty, before.empty) &&
        is(options.shape, before.shape) && options.resume == (line[0] == '-');
    if (!same) _exit(DIFFERENT);
}

// Edges and bits at random, in fields of every kind.
static void check_settings(void) {
    const double reals[] = {0, -0.0, 0.1, 1.0 / 3, 0.1 + 0.2, DBL_MAX, -DBL_MAX, DBL_MIN, 1e22,
        DBL_EPSILON, DBL_MIN / 3, 4.9e-324, 9007199254740992.0, 123456789012345680.0, 0.02, 5e300};
    const char* const texts[] = {"", " ", "a b", "two\nlines", "\n", "\t", "a\tb\n\tc", "\\", "\\n",
        "\\\\n", "\\\n", "back\\slash", "ends in \\", "--text=x", "\xc3\xa9\xff", "\r\n",
        "auto", "%s%n"};
    for (size_t i = 0; i < 100; i++) {
        uint64_t bits = splitmix64(i);
        parse(i % 2 ? "--resume" : "");
        if (i < COUNT_OF(reals)) options.rate = reals[i];
        else if ((bits >> 52 & 2047) != 2047) memcpy(&options.rate, &bits, 8);
        options.muon_rate = (double)(bits >> 11) / 9007199254740992.0 * 10;
        options.steps = (long long)(bits % 9000000000000001u);
        options.warmup = i % 7 ? 1 + (long long)i : AUTO;
        options.clip = i % 3 ? 0.5 : (double)NAN;
        options.text = texts[i % COUNT_OF(texts)];
        options.empty = texts[(i + 5) % COUNT_OF(texts)];
        options.shape = i % 2 ? "cosine" : "linear";
        run_child(save_and_restore, i % 5 ? "" : "-y");
        count_case(outcome.code == SAME && outcome.n == 0, options.text);
    }
    close_family("settings: saved and restored to the bit");
}

// Over a command line that gives nothing.
static void restore(const char* path) {
    parse("");
    options_restore(&table, path);
}

// Over one that gives some.
static void restore_over_given(const char* path) {
    parse("--rate|4|-k|linear|--warmup|9");
    options_restore(&table, path);
    int right = options.steps == 3 && options.rate == 4 && is(options.shape, "linear") &&
        options.warmup == 9 && is(options.text, "a\nb\\c\tand") && !option_given(&table, "steps");
    if (!right) _exit(DIFFERENT);
}

// A file that must change nothing.
static void restore_nothing(const char* path) {
    restore(path);
    if (options.steps != 500 || !is(options.text, "words")) _exit(DIFFERENT);
}

// What the command line gives is not restored; a file that is not there changes nothing.
static void check_given(void) {
    write_text(at("settings"),
        "steps\t3\nrate\t0.25\ntext\ta\\nb\\\\c\tand\nshape\tcosine\nwarmup\tauto\n");
    run_child(restore_over_given, at("settings"));
    count_case(outcome.code == SAME, "some are given");
    run_child(restore_nothing, at("missing"));
    count_case(outcome.code == SAME, "no file");
    write_text(at("settings"), "");
    run_child(restore_nothing, at("settings"));
    count_case(outcome.code == SAME, "an empty file");
    close_family("settings: and a command line");
}

// What we do not write is refused, and named as the command line names it.
static void check_bad_settings(void) {
    const char* const lines = "need lines of a name, a tab and a value";
    const struct {
        const char *text, *found;
    } bad[] = {
        {"steps\t3", lines}, {"steps 3\n", lines}, {"steps\n", lines}, {"\n", lines},
        {"\nsteps\t3\n", lines}, {"steps\t3\n\n", lines}, {"steps\t3\nrate", lines},
        {"text\ta\\x\n", lines}, {"text\ta\\\n", lines}, {"\t3\n", "need an option"},
        {"stepz\t3\n", "found 'stepz', need an option"}, {"steps \t3\n", "need an option"},
        {"muon_rate\t1\n", "need an option"}, {"resume\t1\n", "need an option"},
        {"steps\t3x\n", "found steps '3x', need a whole number"}, {"steps\t\n", "found steps ''"},
        {"steps\t3 \n", "found steps '3 '"}, {"steps\t3\r\n", "found steps '3?'"},
        {"steps\t-1\n", "found steps '-1'"}, {"clip\tnan\n", "found clip 'nan'"},
        {"shape\twsdx\n", "found shape 'wsdx', need one of wsd|cosine|linear\n"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        write_text(at("settings"), bad[i].text);
        count_refused(restore, at("settings"), EXIT_INPUT, bad[i].found, bad[i].text);
    }
    write_file(at("settings"), "steps\t3\n\0rate\t1\n", 16);
    count_refused(restore, at("settings"), EXIT_INPUT, lines, "a zero byte");
    count_kinds(restore);
    close_family("settings: malformed files");
}

// Settings cut off at every byte: refused, or between two lines the first ones.
static void check_cut_settings(void) {
    parse("--text=a\nb\\c");
    options_save(&table, at("settings"));
    size_t n;
    char* text = read_file(at("settings"), &n);
    for (size_t i = 0; i <= n; i++) {
        write_file(at("settings"), text, i);
        run_child(restore, at("settings"));
        int good = i == 0 || text[i - 1] == '\n';
        count_case(good ? outcome.code == SAME
                        : is_error(EXIT_INPUT, at("settings"), "need lines of a name"), "cut off");
    }
    free(text);
    close_family("settings: cut off at every byte");
}

// The defaults.
static void save_settings(const char* path) {
    parse("");
    options_save(&table, path);
}

// Where a file may have 20 bytes.
static void save_settings_over_limit(const char* path) {
    struct rlimit limit = {20, 20};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    save_settings(path);
}

// The older file stays as it was.
static void check_settings_errors(void) {
    run_child(save_settings, at("missing/settings"));
    count_case(is_error(EXIT_RESOURCES, at("missing/settings.tmp"), "No such file"), "no folder");
    write_text(at("settings"), "steps\t3\n");
    run_child(save_settings_over_limit, at("settings"));
    count_case(is_error(EXIT_RESOURCES, at("settings"), "File too large"), "no room");
    count_here(file_is(at("settings"), "steps\t3\n", 8), "the older file is as it was");
    close_family("settings: that cannot be written");
}

// -------------------------------------------------------------------------------------------------

static void check_tensors(void) {
    check_json_numbers();
    check_json_errors();
    check_json_strings();
    check_round_trip();
    check_narrow_types();
    check_not_finite();
    check_good_headers();
    check_bad_places();
    check_bad_shapes();
    check_bad_fields();
    check_many();
    read_good_file();
    check_truncations();
    check_bit_flips();
    check_sizes();
    free(good_file);
    check_known_files();
    check_kinds();
    check_facts();
}

static void check_checkpoints(void) {
    check_sums();
    check_files();
    check_same_bytes();
    check_finite();
    check_damage();
    check_damaged_sums();
    check_names();
    check_many_names();
    check_newest();
    check_prune();
    check_sweep();
    check_again();
    check_beyond();
    check_faults();
    check_small_faults();
    check_room();
    check_folders();
}

static void check_measures(void) {
    check_log_rows();
    check_full_log();
    check_log_copy();
    check_question_words();
    check_question_headers();
    check_question_files();
    check_answers();
    check_floor();
    check_shares();
    check_draws();
}

static void check_options(void) {
    check_good_lines();
    check_junk();
    check_bad_values();
    check_bad_names();
    check_help();
    check_settings();
    check_given();
    check_bad_settings();
    check_cut_settings();
    check_settings_errors();
}

int main(void) {
    const char* base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/test_files_XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(folder)) die_errno(EXIT_RESOURCES, folder, "need a fresh folder");
    mallopt(M_MMAP_THRESHOLD, 1 << 17);  // freed memory is given back, so that forks are cheap
    mkfifo(at("fifo"), 0644);
    check_tensors();
    check_checkpoints();
    check_measures();
    check_options();
    check("the longest case, seconds of CPU time", longest_case, 1);
    check("the largest process that refused something, MiB", largest_error / 1024, 64);
    check_true("at least 3,000 cases", all_cases >= 3000);
    printf("%d cases\n", all_cases);
    remove_tree(folder);
    check_true("the tests leave nothing behind", access(folder, F_OK) != 0);
    return checks_close();
}
