// test_tokens.c: tests of data/tokens.h: checksum, order of samples, shards written and refused.
//
//     cc -O3 -march=native -fopenmp -Wall -Wextra dev/test/test_tokens.c -o test_tokens -lm
//
// All files live in a fresh folder under $TMPDIR or /tmp, which is removed at the end. What must
// end the process is run in a child, whose exit code and stderr are compared.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // for nftw
#endif
#include "../../data/tokens.h"
#include "check.h"
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

// -------------------------------------------------------------------------------------------------
// Files and folders of the tests

static char folder[1024];  // the fresh folder

// Path of a name in the folder; it stays valid for the next fifteen calls.
static const char* at(const char* name) {
    static char paths[16][2048];
    static int next;
    char* path = paths[next++ % 16];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void folder_make(void) {
    const char* base = getenv("TMPDIR");
    snprintf(folder, sizeof(folder), "%s/test_tokens_XXXXXX", base && *base ? base : "/tmp");
    if (mkdtemp(folder) == NULL) die_errno(EXIT_RESOURCES, folder, "need a fresh folder");
    chmod(folder, 0755);  // for the test that reads as another user
}

static int remove_entry(const char* path, const struct stat* info, int type, struct FTW* place) {
    (void)info, (void)type, (void)place;
    return remove(path);
}

static void write_file(const char* path, const void* data, size_t n) {
    FILE* file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, n, file) != n || fclose(file) != 0) {
        die_errno(EXIT_RESOURCES, path, "need a test file");
    }
}

// A shard written by hand: n tokens, each `first` plus its index, behind any header, then
// `extra` bytes more (or less, when negative).
static void write_raw(
    const char* path, int magic, int version, int count, size_t n, int first, int extra) {
    size_t size = 1024 + 2 * n;
    char* bytes = (char*)xmalloc(size + 1024, 1);
    int32_t header[3] = {magic, version, count};
    memcpy(bytes, header, sizeof(header));
    for (size_t i = 0; i < n; i++) {
        uint16_t id = (uint16_t)((size_t)first + i);
        memcpy(bytes + 1024 + 2 * i, &id, 2);
    }
    write_file(path, bytes, size + (size_t)(long)extra);
    free(bytes);
}

static void write_shard(const char* path, size_t n, int first) {
    write_raw(path, 20240520, 1, (int)n, n, first, 0);
}

// -------------------------------------------------------------------------------------------------
// Children: what must end the process, and how it ended

typedef struct Case {
    const char* pattern;
    int T, V;
    uint64_t index;                    // the sample read after opening
    void (*between)(const char* path);  // what happens to `path` between the two
    const char* path;
} Case;

// What a process that dies has not freed is no leak: leaves before LeakSanitizer looks.
static void leave(int code, void* unused) {
    (void)unused;
    _exit(code);
}

// A case that is about one file and reads no samples.
static Case about(const char* path) {
    Case c = {"", 0, 0, 0, NULL, path};
    return c;
}

// Runs the action in a child that is killed after ten seconds, so that a hang is a failure.
// Returns its exit code, or 128 + signal; text receives its stderr.
static int run_child(void (*action)(const Case*), const Case* c, char* text, size_t size) {
    int ends[2];
    fflush(stdout);
    if (pipe(ends) != 0) die_errno(EXIT_RESOURCES, "pipe", "need one");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        alarm(10);
        on_exit(leave, NULL);
        action(c);
        _exit(0);
    }
    close(ends[1]);
    usleep(2000);  // a child that writes much finds the pipe full, and signals find it waiting
    size_t n = 0;
    ssize_t got;
    while ((got = read(ends[0], text + n, size - 1 - n)) > 0) n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The action must exit with the code after exactly one line "error: WHERE: ..." that says `found`.
static void check_dies(
    const char* name, void (*action)(const Case*), const Case* c, int code, const char* where,
    const char* found) {
    static char text[32768], start[16384];
    int exit_code = run_child(action, c, text, sizeof(text));
    snprintf(start, sizeof(start), "error: %s: ", where);
    char* newline = strchr(text, '\n');
    int ok = exit_code == code && strncmp(text, start, strlen(start)) == 0 && newline &&
             newline[1] == 0 && strstr(text, found) != NULL;
    check_true(name, ok);
    if (!ok) printf("    exit code %d, need %d; stderr: %s\n", exit_code, code, text);
}

static void open_and_sample(const Case* c) {
    Dataset data;
    int tokens[4096];
    dataset_open(&data, c->pattern, c->T, c->V, DATASET_IN_ORDER);
    if (c->between) c->between(c->path);
    dataset_sample(&data, c->index, tokens);
    dataset_close(&data);
}

// A file of the folder that must be refused as a shard.
static void check_refused(const char* name, const char* file, const char* found) {
    Case c = {at(file), 4, 50257, 0, NULL, NULL};
    check_dies(name, open_and_sample, &c, EXIT_INPUT, c.pattern, found);
}

// -------------------------------------------------------------------------------------------------
// Errors, memory, files, checksum

static void die_with_control_bytes(const Case* c) { die(EXIT_NUMERIC, c->path, "a\nb\t\033[2Jc"); }

// AddressSanitizer would end the program itself where calloc returns NULL.
const char* __asan_default_options(void);
const char* __asan_default_options(void) { return "allocator_may_return_null=1"; }

static void allocate_too_much(const Case* c) {
    (void)c;
    volatile size_t size = 8;  // volatile, so that the compiler neither warns nor leaves it out
    void* volatile memory = xmalloc(SIZE_MAX / 4, size);
    (void)memory;
}

static void read_whole(const Case* c) {
    size_t size;
    read_file(c->path, &size);
}

static void read_beyond_end(const Case* c) {
    char bytes[8];
    struct stat info;
    read_all(open_regular(c->path, &info), c->path, bytes, sizeof(bytes), 0);
}

// What every reader of a whole file relies on: all bytes, a zero behind them, no wait on a pipe.
static void check_whole_files(void) {
    size_t size;
    write_file(at("whole"), "a\0b\n", 4);
    char* data = read_file(at("whole"), &size);
    check_true("read_file: all bytes and a zero", size == 4 && memcmp(data, "a\0b\n", 5) == 0);
    free(data);
    write_file(at("empty"), "", 0);
    data = read_file(at("empty"), &size);
    check_true("read_file: an empty file", size == 0 && data[0] == 0);
    free(data);
    mkfifo(at("pipe"), 0644);
    Case fifo = about(at("pipe")), dir = about(folder), missing = about(at("missing"));
    Case whole = about(at("whole"));
    check_dies("read_file: a FIFO, without waiting", read_whole, &fifo, 3, fifo.path, "pipe");
    check_dies("read_all: an early end", read_beyond_end, &whole, 3, whole.path, "changed");
    check_dies("read_file: a directory", read_whole, &dir, 3, folder, "a directory");
    check_dies("read_file: no such file", read_whole, &missing, 3, missing.path, "No such file");
}

// A message is one line whatever is in it, and memory is zeroed or refused.
static void check_errors(void) {
    static char where[10001];
    memset(where, 'w', sizeof(where) - 1);
    Case control = about("x\ny"), lengthy = about(where);
    char text[16384];
    check_dies("die: control bytes in one line", die_with_control_bytes, &control, 5, "x?y",
        "a?b??[2Jc\n");
    int code = run_child(die_with_control_bytes, &lengthy, text, sizeof(text));
    check_true("die: a path of 10,000 bytes is one line", code == 5 && strlen(text) > 4000 &&
        strchr(text, '\n') == text + strlen(text) - 1);
    check_dies("xmalloc: a product beyond 2^64", allocate_too_much, &control, 4, "memory",
        "x 8 bytes");
    char* zeros = (char*)xmalloc(1000, 3);
    int sum = 0;
    for (int i = 0; i < 3000; i++) sum |= zeros[i];
    check_true("xmalloc: zeroed", sum == 0);
    free(zeros);
    char* path = xprintf("%s/%06d", "dir", 7);
    check_true("xprintf", strcmp(path, "dir/000007") == 0);
    free(path);
    double before = now_seconds();
    usleep(2000);
    check_true("now_seconds: 2 ms are at least 2 ms", now_seconds() - before >= 0.002);
}

static void on_alarm(int signal) { (void)signal; }

// One megabyte into a pipe, interrupted every 200 microseconds by a signal that restarts nothing.
static void write_interrupted(const Case* c) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, NULL);
    struct itimerval every = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &every, NULL);
    static char bytes[1 << 20];
    for (size_t i = 0; i < sizeof(bytes); i++) bytes[i] = (char)(i * 7 + (i >> 8));
    write_all(2, c->path, bytes, sizeof(bytes));
}

// Stands for a full disk: a write beyond the limit is cut short, the next one fails with EFBIG.
static void limit_file_size(size_t bytes) {
    struct rlimit limit = {bytes, bytes};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
}

static void write_beyond_limit(const Case* c) {
    static char bytes[10000];
    limit_file_size(3000);
    write_all(open(c->path, O_WRONLY | O_CREAT | O_TRUNC, 0644), c->path, bytes, sizeof(bytes));
}

// The signal and the full pipe make every kind of write: whole, short, and interrupted at once.
static void check_write_all(void) {
    size_t size = (1 << 20) + 2;
    char* text = (char*)xmalloc(size, 1);
    Case c = about(at("written"));
    int wrong = run_child(write_interrupted, &c, text, size) != 0;
    for (size_t i = 0; i < 1 << 20; i++) wrong += text[i] != (char)(i * 7 + (i >> 8));
    check("write_all: wrong bytes through signals and short writes", wrong, 0);
    free(text);
    check_dies("write_all: no room", write_beyond_limit, &c, 4, c.path, "File too large");
}

// The definition of CRC-32C, a bit at a time.
static uint32_t crc32c_plain(uint32_t crc, const void* data, size_t n) {
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= ((const unsigned char*)data)[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

// All lengths around the step of eight bytes, each in two calls.
static void check_crc(void) {
    unsigned char bytes[100];
    int wrong = 0;
    for (int i = 0; i < 100; i++) bytes[i] = (unsigned char)splitmix64((uint64_t)i);
    for (size_t n = 0; n <= 100; n++) {
        for (size_t cut = 0; cut <= n; cut++) {
            uint32_t crc = crc32c(crc32c(0, bytes, cut), bytes + cut, n - cut);
            wrong += crc != crc32c_plain(0, bytes, n);
        }
    }
    check_true("crc32c: the standard vector", crc32c(0, "123456789", 9) == 0xE3069283u);
    check_true("crc32c: nothing", crc32c(0, bytes, 0) == 0 && crc32c(7, bytes, 0) == 7);
    check("crc32c: wrong results over lengths 0..100, cut anywhere", wrong, 0);
}

// -------------------------------------------------------------------------------------------------
// The order of an epoch

// Elements of [0, n) that an epoch's order misses or repeats.
static int permutation_faults(uint64_t n, uint64_t epoch, uint64_t seed) {
    char* seen = (char*)xmalloc(n, 1);
    int faults = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t x = dataset_permute(i, n, epoch, seed);
        faults += x >= n || seen[x]++;
    }
    free(seen);
    return faults;
}

// Share of the places that two orders of n samples have in common; 1/n is chance.
static double order_overlap(
    uint64_t n, uint64_t epoch, uint64_t seed, uint64_t other_epoch, uint64_t other_seed) {
    int same = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t other = dataset_permute(i, n, other_epoch, other_seed);
        same += dataset_permute(i, n, epoch, seed) == other;
    }
    return (double)same / (double)n;
}

// A bijection for every n, known values, and no resemblance between epochs or seeds.
static void check_permutation(void) {
    // From an implementation in Python of the same definition.
    const int epoch0[10] = {0, 1, 2, 5, 6, 7, 9, 3, 8, 4};
    const int epoch1[10] = {0, 1, 4, 6, 8, 9, 7, 5, 2, 3};
    const uint64_t large[3] = {294152506788u, 441086648418u, 203911797997u};
    int wrong = 0, faults = 0;
    for (uint64_t i = 0; i < 10; i++) {
        wrong += dataset_permute(i, 10, 0, 1234) != (uint64_t)epoch0[i];
        wrong += dataset_permute(i, 10, 1, 1234) != (uint64_t)epoch1[i];
    }
    for (uint64_t i = 0; i < 3; i++) {
        wrong += dataset_permute(i, 1000000000000u, 7, 42) != large[i];
    }
    check("order: differs from the oracle's", wrong, 0);
    check_true("splitmix64: the published first output of seed 0",
        splitmix64(0) == 0xE220A8397B1DCDAFu);
    for (uint64_t n = 1; n <= 70; n++) {
        for (uint64_t epoch = 0; epoch < 5; epoch++) faults += permutation_faults(n, epoch, n * 31);
    }
    check("order: faults of a bijection, n = 1..70", faults, 0);
    const uint64_t sizes[5] = {1023, 1024, 1025, 65537, 1000000};
    for (int i = 0; i < 5; i++) faults += permutation_faults(sizes[i], 1, 42);
    check("order: faults of a bijection, n up to 1,000,000", faults, 0);
    // 12 places of 4,096: a random order shares one on average.
    check("order: places that two epochs share", order_overlap(4096, 0, 42, 1, 42), 0.003);
    check("order: places that two seeds share", order_overlap(4096, 0, 42, 0, 43), 0.003);
    double fixed = 0, mean = 0;
    for (uint64_t i = 0; i < 4096; i++) fixed += dataset_permute(i, 4096, 0, 42) == i;
    check("order: places that epoch 0 leaves as they are", fixed / 4096, 0.003);
    for (uint64_t epoch = 0; epoch < 4000; epoch++) {
        mean += (double)dataset_permute(0, 1000, epoch, 42) / 4000;
    }
    check("order: mean place of sample 0 over 4,000 epochs, off by", fabs(mean / 499.5 - 1), 0.05);
}

// -------------------------------------------------------------------------------------------------
// Samples: each once an epoch, from shards of any length

// Reads an epoch of the dataset whose tokens are their own numbers, counted over all shards.
// Returns how many samples are missing, repeated, or hold anything but T+1 neighbours.
static int epoch_faults(Dataset* data, uint64_t epoch, const int* starts) {
    int T = data->T, faults = 0, tokens[64];
    char* seen = (char*)xmalloc(data->n_tokens, 1);
    for (uint64_t i = 0; i < data->n_samples; i++) {
        dataset_sample(data, epoch * data->n_samples + i, tokens);
        for (int t = 0; t < T; t++) faults += tokens[t + 1] != tokens[t] + 1;
        int shard = 0;
        while (shard + 1 < data->n_shards && tokens[0] >= starts[shard + 1]) shard++;
        faults += (tokens[0] - starts[shard]) % T != 0 || seen[tokens[0]]++;
    }
    free(seen);
    return faults;
}

// Shards of unequal length whose tokens are their own numbers: what is read tells its place.
static void check_epochs(void) {
    const int starts[4] = {0, 1000, 4000, 4000};  // the third shard is empty
    write_shard(at("e_0.bin"), 1000, 0);
    write_shard(at("e_1.bin"), 3000, 1000);
    write_shard(at("e_2.bin"), 0, 4000);
    write_shard(at("e_3.bin"), 2000, 4000);
    Dataset data, other;
    dataset_open(&data, at("e_*.bin"), 7, 6000, 42);
    check_true("dataset: shards and tokens", data.n_shards == 4 && data.n_tokens == 6000);
    check_true("dataset: samples are the sum of floor((n-1)/T)",
        data.n_samples == 999 / 7 + 2999 / 7 + 1999 / 7);
    int faults = 0, differ = 0, tokens[8], again[8];
    for (uint64_t epoch = 0; epoch < 3; epoch++) faults += epoch_faults(&data, epoch, starts);
    check("dataset: faults in three epochs, each sample once", faults, 0);
    int repeated = 0;
    for (uint64_t i = 0; i < data.n_samples; i++) {
        dataset_sample(&data, i, tokens);
        dataset_sample(&data, i + data.n_samples, again);
        repeated += tokens[0] == again[0];
    }
    check("dataset: samples that two epochs have at one place", repeated, 8);
    dataset_open(&other, at("e_*.bin"), 7, 6000, 42);
    for (uint64_t i = 3 * data.n_samples; i-- > 0;) {
        dataset_sample(&data, i, tokens);
        dataset_sample(&other, (i * 5) % (3 * data.n_samples), again);  // disturbs, if it can
        dataset_sample(&other, i, again);
        differ += memcmp(tokens, again, sizeof(tokens)) != 0;
    }
    check("dataset: samples that depend on what was read before", differ, 0);
    dataset_close(&other);
    dataset_close(&data);

    dataset_open(&data, at("e_*.bin"), 7, 6000, DATASET_IN_ORDER);
    int last = -1, out_of_order = 0;
    for (uint64_t i = 0; i < data.n_samples; i++) {
        dataset_sample(&data, 2 * data.n_samples + i, tokens);
        out_of_order += tokens[0] <= last;
        last = tokens[0];
    }
    check("dataset: samples out of order when asked for order", out_of_order, 0);
    dataset_close(&data);
}

// The count of samples around every edge: floor((n-1)/T), and too few for one is refused.
static void check_sizes(void) {
    enum { T = 16 };
    const int tokens[4] = {T + 1, 5 * T, 5 * T + 1, 5 * T + 2}, samples[4] = {1, 4, 5, 5};
    const char* names[4] = {"T+1", "5T", "5T+1", "5T+2"};
    Dataset data;
    char name[128];
    for (int i = 0; i < 4; i++) {
        int sample[T + 1];
        write_shard(at("size.bin"), (size_t)tokens[i], 0);
        dataset_open(&data, at("size.bin"), T, 50257, DATASET_IN_ORDER);
        dataset_sample(&data, data.n_samples - 1, sample);
        snprintf(name, sizeof(name), "dataset: a shard of %s tokens has %d samples", names[i],
            samples[i]);
        check_true(name, data.n_samples == (uint64_t)samples[i] &&
            sample[0] == (samples[i] - 1) * T && sample[T] == samples[i] * T);
        dataset_close(&data);
    }
    const int few[3] = {0, 1, T};
    for (int i = 0; i < 3; i++) {
        write_shard(at("few.bin"), (size_t)few[i], 0);
        Case c = {at("few.bin"), T, 50257, 0, NULL, NULL};
        snprintf(name, sizeof(name), "dataset: refused, T = 16 and a shard of %d tokens", few[i]);
        check_dies(name, open_and_sample, &c, EXIT_INPUT, c.pattern, "need 17 in one");
    }
    Case c = {at("size.bin"), 0, 50257, 0, NULL, NULL};
    check_dies("dataset: T = 0", open_and_sample, &c, EXIT_USAGE, "sequence length",
        "need at least 1");
}

// A sparse shard of the greatest count an int32 holds: its last sample lies across byte 2^32.
static void check_huge(void) {
    const uint64_t count = INT32_MAX, T = 256, first = (count - 1) / T * T - T;
    int32_t header[3] = {20240520, 1, INT32_MAX};
    write_file(at("huge_0.bin"), header, sizeof(header));
    int fd = open(at("huge_0.bin"), O_WRONLY);
    int failed = ftruncate(fd, (off_t)(1024 + 2 * count)) != 0;
    for (uint64_t t = 0; t <= T; t++) {
        uint16_t id = (uint16_t)(1000 + t);
        failed |= pwrite(fd, &id, 2, (off_t)(1024 + 2 * (first + t))) != 2;
    }
    close(fd);
    failed |= symlink(at("huge_0.bin"), at("huge_1.bin")) != 0;
    check_true("dataset: two sparse shards of 4.3 GB, written", !failed);

    Dataset data;
    int tokens[257], wrong = 0;
    dataset_open(&data, at("huge_*.bin"), (int)T, 50257, DATASET_IN_ORDER);
    check_true("dataset: 2^32 - 2 tokens", data.n_tokens == 2 * count &&
        data.n_samples == 2 * ((count - 1) / T));
    for (uint64_t shard = 1; shard <= 2; shard++) {
        dataset_sample(&data, shard * ((count - 1) / T) - 1, tokens);
        for (int t = 0; t <= (int)T; t++) wrong += tokens[t] != 1000 + t;
    }
    dataset_sample(&data, data.n_samples / 2, tokens);
    wrong += tokens[0] != 0;
    check("dataset: wrong tokens in samples that lie across byte 2^32", wrong, 0);
    dataset_close(&data);
}

// Ten thousand names of one file, with fewer descriptors than shards.
static void check_many_shards(void) {
    Dataset data;
    int tokens[5], failed = 0;
    char name[64];
    mkdir(at("many"), 0755);
    write_shard(at("many/one"), 9, 100);
    for (int i = 0; i < 10000; i++) {
        snprintf(name, sizeof(name), "many/%06d.bin", i);
        failed |= link(at("many/one"), at(name)) != 0;
    }
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    low.rlim_cur = 32;
    setrlimit(RLIMIT_NOFILE, &low);
    dataset_open(&data, at("many/*.bin"), 4, 50257, 42);
    for (uint64_t i = 0; i < 1000; i++) {
        dataset_sample(&data, i, tokens);
        failed |= (tokens[0] != 100 && tokens[0] != 104) || tokens[4] != tokens[0] + 4;
    }
    setrlimit(RLIMIT_NOFILE, &old);
    check_true("dataset: 10,000 shards with 32 descriptors", !failed && data.n_samples == 20000);
    dataset_close(&data);
}

// -------------------------------------------------------------------------------------------------
// Shards that must be refused

// Each field wrong by itself; the file's size must follow from its count to the byte.
static void check_headers(void) {
    write_raw(at("magic.bin"), 20240801, 7, 100, 100, 0, 0);
    check_refused("refused: wrong magic", "magic.bin", "magic is 20240801, need 20240520");
    write_raw(at("version.bin"), 20240520, 2, 100, 100, 0, 0);
    check_refused("refused: wrong version", "version.bin", "version is 2, need 1");
    write_raw(at("greatest.bin"), 20240520, 1, INT_MAX, 100, 0, 0);
    check_refused("refused: count 2^31 - 1", "greatest.bin", "count is 2147483647 in 1224 bytes");
    write_raw(at("negative.bin"), 20240520, 1, -1, 100, 0, 0);
    check_refused("refused: count -1", "negative.bin", "count is -1 in 1224 bytes");
    write_raw(at("least.bin"), 20240520, 1, INT_MIN, 100, 0, 0);
    check_refused("refused: count -2^31", "least.bin", "count is -2147483648 in 1224 bytes");
    write_raw(at("zero.bin"), 20240520, 1, 0, 100, 0, 0);
    check_refused("refused: count 0 with tokens behind", "zero.bin", "count is 0 in 1224 bytes");
    write_raw(at("short.bin"), 20240520, 1, 100, 100, 0, -1);
    check_refused("refused: one byte short", "short.bin", "count is 100 in 1223 bytes");
    write_raw(at("trailing.bin"), 20240520, 1, 100, 100, 0, 1);
    check_refused("refused: one byte more", "trailing.bin", "count is 100 in 1225 bytes");
    write_raw(at("double.bin"), 20240520, 1, 100, 100, 0, 64);
    check_refused("refused: 64 bytes more", "double.bin", "count is 100 in 1288 bytes");
    write_raw(at("header.bin"), 20240520, 1, 0, 0, 0, -1);
    check_refused("refused: a header one byte short", "header.bin", "1023 bytes, need 1024");
    write_file(at("nothing.bin"), "", 0);
    check_refused("refused: an empty file", "nothing.bin", "0 bytes, need 1024");

    write_shard(at("good_0.bin"), 100, 0);
    write_raw(at("good_1.bin"), 20240520, 1, 100, 100, 0, 2);
    Case c = {at("good_*.bin"), 4, 50257, 0, NULL, NULL};
    check_dies("refused: one bad shard among good ones, by name", open_and_sample, &c, EXIT_INPUT,
        at("good_1.bin"), "count is 100");
}

// As root, becomes another user first: root may read anything.
static void open_as_anyone(const Case* c) {
    if (geteuid() == 0 && setuid(65534) != 0) die_errno(EXIT_RESOURCES, "setuid", "need it");
    open_and_sample(c);
}

// Names that lead to something other than a regular file, or nowhere.
static void check_kinds(void) {
    mkdir(at("folder.bin"), 0755);
    check_refused("refused: a directory", "folder.bin", "a directory");
    mkfifo(at("fifo.bin"), 0644);
    check_refused("refused: a FIFO, without waiting", "fifo.bin", "a pipe or device");
    check_true("a symbolic link to itself", symlink("loop.bin", at("loop.bin")) == 0);
    check_refused("refused: a symbolic link to itself", "loop.bin", "symbolic links");
    check_refused("refused: a glob without a match", "none_*.bin", "no file");
    const char* devices[2] = {"/dev/zero", "/dev/null"};
    for (int i = 0; i < 2; i++) {
        Case c = {devices[i], 4, 50257, 0, NULL, NULL};
        char name[64];
        snprintf(name, sizeof(name), "refused: %s", devices[i]);
        check_dies(name, open_and_sample, &c, EXIT_INPUT, devices[i], "a pipe or device");
    }
    static char path[5000];
    memset(path, 'p', sizeof(path) - 1);
    path[0] = '/';
    Case c = {path, 4, 50257, 0, NULL, NULL};
    check_dies("refused: a path of 5,000 bytes", open_and_sample, &c, EXIT_INPUT, path, "no file");
}

static void check_permission(void) {
    write_shard(at("secret.bin"), 100, 0);
    chmod(at("secret.bin"), 0);
    Case c = {at("secret.bin"), 4, 50257, 0, NULL, NULL};
    check_dies("refused: no permission", open_as_anyone, &c, EXIT_INPUT, c.pattern, "Permission");
}

// The 41st of 41 tokens has the greatest id: V must exceed it.
static void check_vocabulary(void) {
    int tokens[5];
    Dataset data;
    write_shard(at("v_0.bin"), 41, 0);
    write_shard(at("v_1.bin"), 41, 460);
    dataset_open(&data, at("v_*.bin"), 4, 501, DATASET_IN_ORDER);
    dataset_sample(&data, 19, tokens);
    check_true("vocabulary: id V - 1 is read", tokens[4] == 500);
    dataset_close(&data);
    Case c = {at("v_*.bin"), 4, 500, 19, NULL, NULL};
    check_dies("vocabulary: id V in the last token of the last shard", open_and_sample, &c,
        EXIT_INPUT, at("v_1.bin"), "token 40 has id 500, need less than 500");
    write_shard(at("v_2.bin"), 5, 65531);
    Case top = {at("v_2.bin"), 4, 50257, 0, NULL, NULL};
    check_dies("vocabulary: id 65535 where 50,257 are known", open_and_sample, &top, EXIT_INPUT,
        top.pattern, "token 0 has id 65531");
}

// -------------------------------------------------------------------------------------------------
// Shards that change while they are in use, and the fingerprint of their content

// Sets the time of change back, so that only the size tells.
static void append_byte(const char* path) {
    struct stat info;
    int fd = open(path, O_WRONLY | O_APPEND);
    int failed = fstat(fd, &info) != 0;
    write_all(fd, path, "x", 1);
    struct timespec times[2] = {info.st_atim, info.st_mtim};
    if (failed || futimens(fd, times) != 0) die_errno(EXIT_RESOURCES, path, "need its time");
    close(fd);
}

static void cut_byte(const char* path) {
    if (truncate(path, 1024 + 2 * 100 - 1) != 0) die_errno(EXIT_RESOURCES, path, "need to cut it");
}

// A size alone would not tell.
static void change_time(const char* path) {
    struct timespec times[2] = {{1000000000, 0}, {1000000000, 1}};
    if (utimensat(AT_FDCWD, path, times, 0) != 0) die_errno(EXIT_RESOURCES, path, "need its time");
}

static void replace_file(const char* path) {
    const char* other = at("other.bin");
    write_shard(other, 100, 7);
    change_time(other);
    if (rename(other, path) != 0) die_errno(EXIT_RESOURCES, path, "need to replace it");
}

static void replace_by_pipe(const char* path) {
    unlink(path);
    mkfifo(path, 0644);
}

static void remove_file(const char* path) { unlink(path); }

// What happens between opening and reading must be noticed at the read.
static void check_changes(void) {
    const struct {
        const char* name;
        void (*change)(const char*);
        const char* found;
    } changes[6] = {
        {"changed: a byte appended between two reads", append_byte, "changed during the run"},
        {"changed: a byte cut off between two reads", cut_byte, "changed during the run"},
        {"changed: another time, the same size", change_time, "changed during the run"},
        {"changed: another file under the name", replace_file, "changed during the run"},
        {"changed: a FIFO under the name", replace_by_pipe, "a pipe or device"},
        {"changed: removed", remove_file, "No such file"},
    };
    for (int i = 0; i < 6; i++) {
        unlink(at("change.bin"));
        write_shard(at("change.bin"), 100, 0);
        Case c = {at("change.bin"), 4, 50257, 24, changes[i].change, at("change.bin")};
        check_dies(changes[i].name, open_and_sample, &c, EXIT_INPUT, c.path, changes[i].found);
    }
}

static uint32_t fingerprint(const char* pattern) {
    Dataset data;
    dataset_open(&data, pattern, 4, 65536, 42);
    uint32_t crc = dataset_fingerprint(&data);
    dataset_close(&data);
    return crc;
}

// Adds one to a token's low byte.
static void bump(const char* path, size_t token) {
    int fd = open(path, O_RDWR);
    unsigned char byte;
    off_t offset = (off_t)(1024 + 2 * token);
    if (pread(fd, &byte, 1, offset) != 1) die_errno(EXIT_RESOURCES, path, "need to read");
    byte++;
    if (pwrite(fd, &byte, 1, offset) != 1) die_errno(EXIT_RESOURCES, path, "need to write");
    close(fd);
}

// One shard shorter than 64 KiB and one longer; the definition is repeated here from the files.
static void check_fingerprint(void) {
    uint64_t counts[2] = {100, 100000};
    mkdir(at("a"), 0755);
    mkdir(at("b"), 0755);
    write_shard(at("a/x_0.bin"), counts[0], 0);
    write_shard(at("a/x_1.bin"), counts[1], 0);
    write_shard(at("b/y_3.bin"), counts[0], 0);
    write_shard(at("b/y_4.bin"), counts[1], 0);
    size_t small, large;
    char* first = read_file(at("a/x_0.bin"), &small);
    char* second = read_file(at("a/x_1.bin"), &large);
    uint32_t crc = crc32c_plain(0, &counts[0], 8);
    crc = crc32c_plain(crc32c_plain(crc, first, small), first, small);
    crc = crc32c_plain(crc32c_plain(crc, &counts[1], 8), second, 65536);
    crc = crc32c_plain(crc, second + large - 65536, 65536);
    free(first);
    free(second);
    check_true("fingerprint: as defined", fingerprint(at("a/*.bin")) == crc);
    check_true("fingerprint: not of names and places", fingerprint(at("b/*.bin")) == crc);
    bump(at("b/y_3.bin"), 50);
    check_true("fingerprint: of a short shard's middle", fingerprint(at("b/*.bin")) != crc);
    write_shard(at("b/y_3.bin"), counts[0], 0);
    bump(at("b/y_4.bin"), counts[1] - 1);
    check_true("fingerprint: of the last token", fingerprint(at("b/*.bin")) != crc);
    write_shard(at("b/y_4.bin"), counts[1] + 1, 0);
    check_true("fingerprint: of the count", fingerprint(at("b/*.bin")) != crc);
    rename(at("b/y_3.bin"), at("b/y_9.bin"));
    write_shard(at("b/y_4.bin"), counts[1], 0);
    check_true("fingerprint: of the order", fingerprint(at("b/*.bin")) != crc);
}

// -------------------------------------------------------------------------------------------------
// The writer

// The shard DIR/PREFIX_index.bin holds exactly n tokens that count up from first.
static int shard_is(const char* prefix, int index, size_t n, int first) {
    char name[256];
    snprintf(name, sizeof(name), "%s_%06d.bin", prefix, index);
    if (access(at(name), F_OK) != 0) return 0;
    write_shard(at("expected"), n, first);
    size_t size, expected_size;
    char* bytes = read_file(at(name), &size);
    char* expected = read_file(at("expected"), &expected_size);
    int same = size == expected_size && memcmp(bytes, expected, size) == 0;
    free(bytes);
    free(expected);
    return same;
}

static int exists(const char* name) { return access(at(name), F_OK) == 0; }

// Puts n tokens that count up from first, in pieces of 0, 1, 2, ... tokens.
static void put_counting(ShardWriter* writer, int n, int first) {
    uint16_t tokens[64];
    for (int done = 0, piece = 0; done < n; piece = (piece + 1) % 24) {
        int take = piece < n - done ? piece : n - done;
        for (int i = 0; i < take; i++) tokens[i] = (uint16_t)(first + done + i);
        shard_writer_put(writer, tokens, (size_t)take);
        done += take;
    }
}

static void write_counting(const char* prefix, int n, int first, size_t limit) {
    ShardWriter writer;
    shard_writer_open(&writer, folder, prefix, limit);
    put_counting(&writer, n, first);
    shard_writer_close(&writer);
}

// Shards bit for bit, and a second, shorter run over the first.
static void check_writer(void) {
    write_counting("w", 35, 0, 10);
    check_true("writer: 35 tokens by 10, bit for bit", shard_is("w", 0, 10, 0) &&
        shard_is("w", 1, 10, 10) && shard_is("w", 2, 10, 20) && shard_is("w", 3, 5, 30));
    check_true("writer: no temporary file stays", !exists("w_000000.bin.part") &&
        !exists("w_000003.bin.part") && !exists("w_000004.bin"));
    write_counting("w_000000", 5, 0, 10);
    write_file(at("w_7.bin"), "", 0);
    write_file(at("w_000003.bin.txt"), "", 0);
    ShardWriter writer;
    shard_writer_open(&writer, folder, "w", 10);
    put_counting(&writer, 20, 500);
    check_true("writer: until the end, the earlier shards stand",
        shard_is("w", 0, 10, 0) && shard_is("w", 3, 5, 30));
    shard_writer_close(&writer);
    check_true("writer: 20 tokens by 10 are two shards", writer.n_shards == 2 &&
        writer.n_tokens == 20 && shard_is("w", 0, 10, 500) && shard_is("w", 1, 10, 510));
    check_true("writer: the longer run's shards are removed",
        !exists("w_000002.bin") && !exists("w_000003.bin"));
    check_true("writer: nothing else is removed", exists("w_7.bin") &&
        exists("w_000003.bin.txt") && shard_is("w_000000", 0, 5, 0));
    write_counting("none", 0, 0, 0);
    check_true("writer: no tokens are one empty shard", shard_is("none", 0, 0, 0));
    write_counting("large", 60000, 0, 0);
    check_true("writer: the default limit", shard_is("large", 0, 60000, 0) &&
        SHARD_LIMIT == 100000000);
    Dataset data;
    int tokens[8];
    dataset_open(&data, at("w_00000?.bin"), 7, 50257, DATASET_IN_ORDER);
    dataset_sample(&data, 1, tokens);
    check_true("writer: the reader reads it", data.n_tokens == 20 && tokens[0] == 510);
    dataset_close(&data);
}

// 60,000 tokens into the folder c->path, c->index a shard.
static void write_into(const Case* c) {
    ShardWriter writer;
    shard_writer_open(&writer, c->path, "full", c->index);
    put_counting(&writer, 60000, 0);
    shard_writer_close(&writer);
}

static void write_without_room(const Case* c) {
    limit_file_size(3000);
    write_into(c);
}

// The header alone, which stays in stdio's buffer until the shard is complete.
static void write_header_without_room(const Case* c) {
    ShardWriter writer;
    limit_file_size(500);
    shard_writer_open(&writer, c->path, "full", 0);
    shard_writer_close(&writer);
}

// A write that fails names the file and leaves none under a shard's name.
static void check_writer_errors(void) {
    Case missing = about(at("missing"));
    check_dies("writer: no such folder", write_into, &missing, EXIT_RESOURCES,
        at("missing/full_000000.bin.part"), "No such file");
    Case full = about(folder), many = full, limit = full;
    many.index = 1000;          // tokens a shard
    limit.index = 2147483648u;
    check_dies("writer: no room", write_without_room, &full, EXIT_RESOURCES,
        at("full_000000.bin.part"), "File too large");
    check_dies("writer: no room for the header", write_header_without_room, &full, EXIT_RESOURCES,
        at("full_000000.bin.part"), "File too large");
    check_true("writer: no room leaves no shard", !exists("full_000000.bin"));
    mkdir(at("full_000001.bin"), 0755);
    check_dies("writer: a name that is taken", write_into, &many, EXIT_RESOURCES,
        at("full_000001.bin"), "directory");
    check_dies("writer: 2^31 tokens a shard", write_into, &limit, EXIT_USAGE, "full", "< 2^31");
}

// -------------------------------------------------------------------------------------------------

int main(void) {
    folder_make();
    check_errors();
    check_whole_files();
    check_write_all();
    check_crc();
    check_permutation();
    check_epochs();
    check_sizes();
    check_huge();
    check_many_shards();
    check_headers();
    check_kinds();
    check_permission();
    check_vocabulary();
    check_changes();
    check_fingerprint();
    check_writer();
    check_writer_errors();
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    check_true("the tests leave nothing behind", access(folder, F_OK) != 0);
    return checks_close();
}
