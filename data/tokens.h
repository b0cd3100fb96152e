// tokens.h: where tokens live on disk, how shards are written, and how training samples are read.
//
// A shard is a file of token ids in llm.c's format, little-endian, so that shards made for llm.c
// or modded-nanogpt work as they are:
//     int32[256]       magic 20240520, version 1, count, then zeros
//     uint16[count]    token ids; the file's size is exactly 1024 + 2 * count
// A Dataset is all shards behind a glob, cut into samples of T+1 tokens: T inputs and, one place
// further, their T targets. An epoch visits every sample once, in an order that is a function of
// the seed and of a sample's index alone, so a run's whole position in its data is one integer.
//
// As the base of every program here, this header also holds errors, memory, files and checksums.
// It refuses: mapped files (a file that shrinks would end the run with SIGBUS), descriptors kept
// open (10,000 shards must work), and any file whose header and size do not agree.
#ifndef TOKENS_H
#define TOKENS_H
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards and checkpoints are little-endian files, and are read here without a swap of bytes"
#endif

// -------------------------------------------------------------------------------------------------
// Errors: one line on stderr, an exit code that says whose turn it is to act

enum {
    EXIT_USAGE = 2,      // the command line
    EXIT_INPUT = 3,      // a file that is not what it should be
    EXIT_RESOURCES = 4,  // memory, disk or network
    EXIT_NUMERIC = 5,    // a loss or gradient that is not finite
    EXIT_RESUME = 6,     // a checkpoint of another run
    EXIT_PEER = 7        // another process of the run is gone
};

// Prints "error: WHERE: what was found, what is needed" and exits. The text may quote bytes of a
// broken file, so control bytes become '?': the message stays one line and cannot drive a terminal.
__attribute__((noreturn, format(printf, 3, 4))) static inline void die(
    int code, const char* where, const char* format, ...) {
    char text[4096], line[10400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(line, sizeof(line), "error: %.6000s: %s", where, text);
    for (char* c = line; *c; c++) *c = iscntrl((unsigned char)*c) ? '?' : *c;
    fflush(stdout);  // what was reported before the error stays before it
    fprintf(stderr, "%s\n", line);
    exit(code);
}

// The same, where what was found is the system's last error.
static inline void die_errno(int code, const char* where, const char* need) {
    die(code, where, "%s, %s", strerror(errno), need);
}

// -------------------------------------------------------------------------------------------------
// Memory, time and random bits

// Zeroed memory for count elements of size bytes each; calloc checks the product.
static inline void* xmalloc(size_t count, size_t size) {
    void* memory = calloc(count, size);
    if (!memory) die(EXIT_RESOURCES, "memory", "none left, need %zu x %zu bytes", count, size);
    return memory;
}

// printf into fresh memory, for texts and paths of any length.
__attribute__((format(printf, 1, 2))) static inline char* xprintf(const char* format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) die_errno(EXIT_RESOURCES, "memory", "need a shorter text");
    char* text = (char*)xmalloc((size_t)n + 1, 1);
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

// Seconds since some fixed moment, by a clock that nobody sets back.
static inline double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// A bijection of 64-bit integers that looks random: the output function of Java's SplittableRandom
// (Steele, Lea and Flood, OOPSLA 2014), with the increment taken first.
static inline uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// -------------------------------------------------------------------------------------------------
// Files: whole reads and writes, and the checksum that tells two contents apart

// Opens a regular file for reading. O_NONBLOCK, so that a FIFO without a writer is refused instead
// of waited for; reads of regular files do not know the flag.
static inline int open_regular(const char* path, struct stat* info) {
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, info) != 0) die_errno(EXIT_INPUT, path, "need a readable file");
    if (S_ISDIR(info->st_mode)) die(EXIT_INPUT, path, "a directory, need a regular file");
    if (!S_ISREG(info->st_mode)) die(EXIT_INPUT, path, "a pipe or device, need a regular file");
    return fd;
}

// Reads exactly n bytes at offset; the caller has compared the range with the file's size, so an
// early end means that the file has changed since.
static inline void read_all(int fd, const char* path, void* data, size_t n, uint64_t offset) {
    char* bytes = (char*)data;
    while (n > 0) {
        ssize_t got = pread(fd, bytes, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) die_errno(EXIT_INPUT, path, "need a readable file");
        if (got == 0) die(EXIT_INPUT, path, "changed during the run, need the file as it was");
        bytes += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
}

// Writes exactly n bytes at the descriptor's position, through signals and short writes.
static inline void write_all(int fd, const char* path, const void* data, size_t n) {
    const char* bytes = (const char*)data;
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) die_errno(EXIT_RESOURCES, path, "need room to write");
        bytes += put;
        n -= (size_t)put;
    }
}

// The whole file in fresh memory, with a zero byte behind it that *size does not count.
static inline char* read_file(const char* path, size_t* size) {
    struct stat info;
    int fd = open_regular(path, &info);
    *size = (size_t)info.st_size;
    char* data = (char*)xmalloc(*size + 1, 1);
    read_all(fd, path, data, *size, 0);
    close(fd);
    return data;
}

// table[k][byte] is the checksum's state after that byte and k zero bytes.
static inline void crc32c_fill(uint32_t table[8][256]) {
    for (int k = 0; k < 8; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = k == 0 ? byte : table[k - 1][byte];
            for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
            table[k][byte] = crc;
        }
    }
}

// CRC-32C (Castagnoli: RFC 3720, B.4), eight bytes a step: it is linear, so the states after each
// byte alone add up by exclusive or. Start with 0; the result of one call continues in the next.
// The first call fills the table and must come before threads start.
static inline uint32_t crc32c(uint32_t crc, const void* data, size_t n) {
    static uint32_t table[8][256];
    if (table[0][1] == 0) crc32c_fill(table);
    const unsigned char* bytes = (const unsigned char*)data;
    crc = ~crc;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        word ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= table[7 - k][word >> 8 * k & 255];
    }
    for (; n > 0; n--) crc = table[0][(crc ^ *bytes++) & 255] ^ crc >> 8;
    return ~crc;
}

// -------------------------------------------------------------------------------------------------
// ShardWriter: a stream of tokens into DIR/PREFIX_000000.bin, DIR/PREFIX_000001.bin, ...

enum {
    SHARD_MAGIC = 20240520,
    SHARD_VERSION = 1,
    SHARD_HEADER = 1024  // bytes, as 256 int32
};
static const size_t SHARD_LIMIT = 100 * 1000 * 1000;  // tokens a shard, as FineWeb is published

typedef struct {
    const char *dir, *prefix;  // the caller's, until the writer is closed
    size_t limit;              // tokens a shard holds at most
    int n_shards;              // shards begun
    uint64_t n_tokens;         // tokens put, over all shards
    FILE* file;                // the shard being written, NULL between shards
    char* part;                // its temporary path
    size_t n_in_shard;         // tokens put into it
} ShardWriter;

static inline char* shard_path(const ShardWriter* writer, int shard, const char* suffix) {
    return xprintf("%s/%s_%06d.bin%s", writer->dir, writer->prefix, shard, suffix);
}

// limit: tokens a shard, or 0 for SHARD_LIMIT. The folder must exist.
static inline void shard_writer_open(
    ShardWriter* writer, const char* dir, const char* prefix, size_t limit) {
    if (limit > INT32_MAX) die(EXIT_USAGE, prefix, "%zu tokens a shard, need < 2^31", limit);
    memset(writer, 0, sizeof(*writer));
    writer->dir = dir;
    writer->prefix = prefix;
    writer->limit = limit > 0 ? limit : SHARD_LIMIT;
}

static inline void shard_begin(ShardWriter* writer) {
    writer->part = shard_path(writer, writer->n_shards++, ".part");
    writer->n_in_shard = 0;
    writer->file = fopen(writer->part, "wb");
    if (writer->file == NULL || fseek(writer->file, SHARD_HEADER, SEEK_SET) != 0) {
        die_errno(EXIT_RESOURCES, writer->part, "need a file to write to");
    }
}

// Completes the .part file: its count is known only now, so the header comes last. fsync, so that
// a full disk or quota shows before the shard has its name.
static inline void shard_end(ShardWriter* writer) {
    int32_t header[SHARD_HEADER / 4] = {SHARD_MAGIC, SHARD_VERSION, (int32_t)writer->n_in_shard};
    if (fseek(writer->file, 0, SEEK_SET) != 0 ||
        fwrite(header, sizeof(header), 1, writer->file) != 1 || fflush(writer->file) != 0 ||
        fsync(fileno(writer->file)) != 0 || fclose(writer->file) != 0) {
        die_errno(EXIT_RESOURCES, writer->part, "need room on the disk");
    }
    free(writer->part);
    writer->file = NULL;
}

static inline void shard_writer_put(ShardWriter* writer, const uint16_t* tokens, size_t n) {
    while (n > 0) {
        if (writer->file == NULL) shard_begin(writer);
        size_t room = writer->limit - writer->n_in_shard, take = n < room ? n : room;
        if (fwrite(tokens, 2, take, writer->file) != take) {
            die_errno(EXIT_RESOURCES, writer->part, "need room on the disk");
        }
        writer->n_in_shard += take;
        writer->n_tokens += take;
        tokens += take;
        n -= take;
        if (writer->n_in_shard == writer->limit) shard_end(writer);
    }
}

// Removes the shards that an earlier, longer run with this prefix left, so that a glob finds one
// run. The name is built anew from its number: nothing that only resembles a shard is removed.
static inline void shard_remove_stale(const ShardWriter* writer) {
    DIR* folder = opendir(writer->dir);
    if (folder == NULL) die_errno(EXIT_RESOURCES, writer->dir, "need a readable folder");
    size_t length = strlen(writer->prefix);
    for (struct dirent* entry; (entry = readdir(folder)) != NULL;) {
        int shard;
        if (strncmp(entry->d_name, writer->prefix, length) != 0) continue;
        if (sscanf(entry->d_name + length, "_%d.bin", &shard) != 1) continue;
        if (shard < writer->n_shards) continue;
        char* path = shard_path(writer, shard, "");
        if (unlink(path) != 0 && errno != ENOENT) {
            die_errno(EXIT_RESOURCES, path, "need to remove this older shard");
        }
        free(path);
    }
    closedir(folder);
}

// Only now do the shards get their names: a run that was interrupted leaves an earlier run's shards
// as they were. A writer that was given nothing leaves one shard of no tokens.
static inline void shard_writer_close(ShardWriter* writer) {
    if (writer->n_shards == 0) shard_begin(writer);
    if (writer->file != NULL) shard_end(writer);
    for (int shard = 0; shard < writer->n_shards; shard++) {
        char* part = shard_path(writer, shard, ".part");
        char* path = shard_path(writer, shard, "");
        if (rename(part, path) != 0) die_errno(EXIT_RESOURCES, path, "need to rename its .part");
        free(part);
        free(path);
    }
    shard_remove_stale(writer);
}

// -------------------------------------------------------------------------------------------------
// Dataset: the shards behind a glob, as samples of T+1 tokens
//
// Sample j of a shard is its tokens [jT, jT+T]. A shard of n tokens has floor((n-1)/T) samples,
// none when it is shorter than T+1, and what is left behind the last one is not used. No sample
// crosses from one shard into the next.

#define DATASET_IN_ORDER UINT64_MAX  // the seed that stands for no permutation

typedef struct {
    char* path;
    uint64_t n_tokens;
    uint64_t first_sample;  // samples in all shards before this one
    int64_t size;           // bytes, and time of the last change, as seen at the start
    struct timespec changed;
} Shard;

typedef struct {
    int n_shards;
    uint64_t n_tokens;   // over all shards
    uint64_t n_samples;  // an epoch
    int T;               // inputs a sample
    int V;               // every id must be smaller
    uint64_t seed;
    Shard* shards;
    uint16_t* ids;  // (T+1), the sample as it is on disk
} Dataset;

// Opens a shard whose header is checked already, and makes sure it is still the same file.
static inline int shard_reopen(const Shard* shard) {
    struct stat info;
    int fd = open_regular(shard->path, &info);
    if (info.st_size != shard->size ||
        memcmp(&info.st_mtim, &shard->changed, sizeof(shard->changed)) != 0) {
        die(EXIT_INPUT, shard->path, "changed during the run, need the file as it was");
    }
    return fd;
}

// Checks a shard's header against its size; nothing else of the file is read.
static inline void shard_open(Shard* shard, const char* path) {
    struct stat info;
    int fd = open_regular(path, &info);
    long long size = info.st_size;
    if (size < SHARD_HEADER) die(EXIT_INPUT, path, "%lld bytes, need %d", size, SHARD_HEADER);
    int32_t header[SHARD_HEADER / 4];
    read_all(fd, path, header, sizeof(header), 0);
    close(fd);
    int magic = header[0], version = header[1], count = header[2];
    if (magic != SHARD_MAGIC) die(EXIT_INPUT, path, "magic is %d, need %d", magic, SHARD_MAGIC);
    if (version != SHARD_VERSION) {
        die(EXIT_INPUT, path, "version is %d, need %d", version, SHARD_VERSION);
    }
    if (count < 0 || size != SHARD_HEADER + 2LL * count) {
        die(EXIT_INPUT, path, "count is %d in %lld bytes, need 1024 + 2 * count", count, size);
    }
    shard->path = xprintf("%s", path);
    shard->n_tokens = (uint64_t)count;
    shard->size = size;
    shard->changed = info.st_mtim;
}

// The files are taken in the order of their names, byte by byte: glob sorts by the locale, which
// is "C" in a program that sets no other. seed may be DATASET_IN_ORDER.
static inline void dataset_open(Dataset* data, const char* pattern, int T, int V, uint64_t seed) {
    if (T < 1) die(EXIT_USAGE, "sequence length", "%d tokens, need at least 1", T);
    memset(data, 0, sizeof(*data));
    data->T = T;
    data->V = V;
    data->seed = seed;
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0) die(EXIT_INPUT, pattern, "no file, need token shards");
    data->n_shards = (int)found.gl_pathc;
    data->shards = (Shard*)xmalloc(found.gl_pathc, sizeof(Shard));
    for (int s = 0; s < data->n_shards; s++) {
        Shard* shard = &data->shards[s];
        shard_open(shard, found.gl_pathv[s]);
        shard->first_sample = data->n_samples;
        data->n_tokens += shard->n_tokens;
        if (shard->n_tokens > 0) data->n_samples += (shard->n_tokens - 1) / (uint64_t)T;
    }
    globfree(&found);
    if (data->n_samples == 0) {
        die(EXIT_INPUT, pattern, "%llu tokens in %d shards, need %lld in one for a sample",
            (unsigned long long)data->n_tokens, data->n_shards, T + 1LL);
    }
    data->ids = (uint16_t*)xmalloc((size_t)T + 1, sizeof(uint16_t));
}

// Where index x < n of an epoch lies among n samples: a Feistel network of four rounds permutes
// [0, 4^h), the smallest such range that holds n; a value that lands outside [0, n) is sent through
// again until it falls inside (cycle walking: Black and Rogaway, CT-RSA 2002). No table, no state.
static inline uint64_t dataset_permute(uint64_t x, uint64_t n, uint64_t epoch, uint64_t seed) {
    int h = 1;
    while (h < 32 && (uint64_t)1 << 2 * h < n) h++;
    uint64_t mask = ((uint64_t)1 << h) - 1;
    do {
        uint64_t left = x >> h, right = x & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t key = splitmix64(seed ^ splitmix64(epoch * 8 + round));
            uint64_t next = left ^ (splitmix64(right + key) & mask);
            left = right;
            right = next;
        }
        x = left << h | right;
    } while (x >= n);
    return x;
}

// tokens (T+1): sample index of the run, which counts on over the epochs.
static inline void dataset_sample(Dataset* data, uint64_t index, int* tokens) {
    uint64_t epoch = index / data->n_samples, x = index % data->n_samples;
    if (data->seed != DATASET_IN_ORDER) x = dataset_permute(x, data->n_samples, epoch, data->seed);
    const Shard* shard = &data->shards[data->n_shards - 1];
    while (shard->first_sample > x) shard--;  // the last shard that begins at or before sample x
    uint64_t first = (x - shard->first_sample) * (uint64_t)data->T;
    size_t n = (size_t)data->T + 1;
    int fd = shard_reopen(shard);
    read_all(fd, shard->path, data->ids, 2 * n, SHARD_HEADER + 2 * first);
    close(fd);
    for (size_t t = 0; t < n; t++) {
        if (data->ids[t] >= data->V) {
            die(EXIT_INPUT, shard->path, "token %llu has id %d, need less than %d",
                (unsigned long long)(first + t), data->ids[t], data->V);
        }
        tokens[t] = data->ids[t];
    }
}

// One number for the content of all shards in order, whatever their names and places: CRC-32C over
// each one's count (uint64) and the first and the last 64 KiB of its file (all of a shorter file).
static inline uint32_t dataset_fingerprint(const Dataset* data) {
    uint32_t crc = 0;
    char bytes[64 * 1024];
    for (int s = 0; s < data->n_shards; s++) {
        const Shard* shard = &data->shards[s];
        uint64_t size = (uint64_t)shard->size;
        size_t n = size < sizeof(bytes) ? (size_t)size : sizeof(bytes);
        int fd = shard_reopen(shard);
        crc = crc32c(crc, &shard->n_tokens, sizeof(shard->n_tokens));
        for (int end = 0; end < 2; end++) {
            read_all(fd, shard->path, bytes, n, end == 0 ? 0 : size - n);
            crc = crc32c(crc, bytes, n);
        }
        close(fd);
    }
    return crc;
}

static inline void dataset_close(Dataset* data) {
    for (int s = 0; s < data->n_shards; s++) free(data->shards[s].path);
    free(data->shards);
    free(data->ids);
}

#endif
