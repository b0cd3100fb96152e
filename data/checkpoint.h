// checkpoint.h: the folder of a run, which a crash or a full disk cannot spoil.
//
// A checkpoint is a folder OUT/step_000500 of files and CHECKSUMS, a text that is written last:
//     NAME SIZE CRC      of each file: bytes, and CRC-32C in hexadecimal
//     # SIZE CRC         at the end: of the lines above, so that none can be missing
// It is written as step_000500.tmp, flushed to the disk, read back, and only then renamed: at every
// moment the older checkpoints are whole. A failure to write is no reason to end a run: it is
// returned, and nothing half-written stays.
#ifndef CHECKPOINT_H
#define CHECKPOINT_H
#include "tensors.h"
#include <limits.h>
#include <sys/statvfs.h>

// -------------------------------------------------------------------------------------------------
// Writing a checkpoint's files. After a failure the rest does nothing.

typedef struct {
    long long step;             // updates made
    char path[PATH_MAX - 64];   // OUT/step_N; 64 bytes are left for a file's name
    char temporary[PATH_MAX - 64];
    char sums[1024];            // the lines of CHECKSUMS so far
    int error;                  // errno of the first failure, or 0
    const char* bad;            // after EDOM: the tensor with a number that is not finite
    int fd;                     // the file being written, -1: none
    uint64_t size;              // what has been written of it
    uint32_t crc;
} Checkpoint;

// Through signals and short writes. A write of nothing, which POSIX allows, counts as a full disk.
static inline void checkpoint_write(Checkpoint* c, const void* data, size_t n) {
    c->crc = crc32c(c->crc, data, n);
    c->size += n;
    for (const char* p = (const char*)data; n > 0 && !c->error;) {
        ssize_t written = write(c->fd, p, n);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) c->error = written < 0 ? errno : ENOSPC;
        else p += written, n -= (size_t)written;
    }
}

// Begins a file. name: less than 64 bytes, no '/'. Whoever may read the run's folder may read it.
static inline void checkpoint_open(Checkpoint* c, const char* name) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", c->temporary, name);
    c->fd = c->error ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (c->fd < 0 && !c->error) c->error = errno;
    c->size = c->crc = 0;
}

// Ends a file. What fsync has failed on is lost, even if it succeeds the next time: the checkpoint
// has failed, and the next one is written to new files.
static inline void checkpoint_close(Checkpoint* c, const char* name) {
    if (!c->error && fsync(c->fd)) c->error = errno;
    if (c->fd >= 0 && close(c->fd) && !c->error) c->error = errno;
    size_t used = strlen(c->sums), room = sizeof c->sums - used;
    int n = snprintf(c->sums + used, room, "%s %llu %08x\n", name, (unsigned long long)c->size,
        c->crc);
    if ((size_t)n >= room && !c->error) c->error = EOVERFLOW;  // too many files
}

// A whole file at once.
static inline void checkpoint_text(Checkpoint* c, const char* name, const char* text, size_t size) {
    checkpoint_open(c, name);
    checkpoint_write(c, text, size);
    checkpoint_close(c, name);
}

// The safetensors header of facts and records (n), filled up to a multiple of 8 bytes so that the
// numbers behind it are aligned; the caller frees it. The same arguments make the same bytes.
static inline char* tensors_header(
    const Facts* facts, const Record* records, int n, size_t* header_size) {
    // The longest name and four numbers of 64 bits make an entry of 230 bytes, a fact is shorter.
    size_t room = 256 * ((size_t)facts->n + (size_t)n + 1), used = 0;
    uint64_t begin = 0;
    char *h = (char*)xmalloc(room, 1), shape[96];
    // transformers refuses a file that does not say which framework it is for ("pt": PyTorch).
    used += (size_t)snprintf(h, room, "{\"__metadata__\":{\"format\":\"pt\"");
    for (int i = 0; i < facts->n; i++) {
        used += (size_t)snprintf(h + used, room - used, ",\"%s\":\"%s\"", facts->key[i],
            facts->value[i]);
    }
    h[used++] = '}';
    for (const Record* r = records; r < records + n; r++) {
        uint64_t dims[2], end = begin + sizeof(float) * (uint64_t)record_size(r);
        used += (size_t)snprintf(h + used, room - used,
            ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}", r->name,
            shape_text(shape, dims, record_shape(r, dims), ","), (unsigned long long)begin,
            (unsigned long long)end);
        begin = end;
    }
    h[used++] = '}';
    while (used % 8) h[used++] = ' ';
    *header_size = used;
    return h;
}

// Without a branch, so that the loop vectorises: it runs over all of a model.
static inline int all_finite(const float* x, size_t n) {
    int finite = 1;
    for (size_t i = 0; i < n; i++) finite &= isfinite(x[i]) != 0;
    return finite;
}

// A safetensors file of records (n), all in F32, in their order; `get` fills buffer (record_buffer
// floats) piece by piece. A number that is not finite fails the checkpoint, with EDOM: it would not
// be read again.
static inline void checkpoint_tensors(
    Checkpoint* c, const char* name, const Facts* facts, const Record* records, int n, Transfer get,
    void* owner, float* buffer) {
    size_t header_size;
    char* header = tensors_header(facts, records, n, &header_size);
    uint64_t size = header_size;
    checkpoint_open(c, name);
    checkpoint_write(c, &size, sizeof size);
    checkpoint_write(c, header, header_size);
    free(header);
    for (const Record* r = records; r < records + n && !c->error; r++) {
        size_t total = record_size(r), piece = r->transposed ? total : (size_t)PIECE;
        for (size_t at = 0; at < total && !c->error; at += piece) {
            size_t count = total - at < piece ? total - at : piece;
            get(owner, r, at, count, buffer);
            if (!all_finite(buffer, count)) c->error = EDOM, c->bad = r->name;
            if (r->transposed) transpose(buffer + total, buffer, r->rows, r->cols);
            checkpoint_write(c, buffer + (r->transposed ? total : 0), sizeof(float) * count);
        }
    }
    checkpoint_close(c, name);
}

// -------------------------------------------------------------------------------------------------
// config.json and its like, with which transformers loads the folder as GPT2LMHeadModel

// V tokens, the last of them <|endoftext|>; context: positions. Without a vocabulary (merges NULL)
// only config.json is written. llama.cpp reads n_ctx, which transformers no longer does.
static inline void checkpoint_hub_files(
    Checkpoint* c, int V, int context, int C, int L, int NH, const char* vocab_json,
    const char* merges) {
    char text[1024];
    int n = snprintf(text, sizeof text,
        "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": %d,\n"
        " \"n_positions\": %d, \"n_ctx\": %d, \"n_embd\": %d, \"n_layer\": %d, \"n_head\": %d,\n"
        " \"n_inner\": null, \"activation_function\": \"gelu_new\", \"embd_pdrop\": 0.0,\n"
        " \"layer_norm_epsilon\": 1e-05, \"resid_pdrop\": 0.0, \"attn_pdrop\": 0.0,\n"
        " \"initializer_range\": 0.02, \"bos_token_id\": %d, \"eos_token_id\": %d,\n"
        " \"tie_word_embeddings\": true, \"torch_dtype\": \"float32\"}\n",
        V, context, context, C, L, NH, V - 1, V - 1);
    checkpoint_text(c, "config.json", text, (size_t)n);
    if (!merges) return;
    n = snprintf(text, sizeof text,
        "{\"tokenizer_class\": \"GPT2Tokenizer\", \"model_max_length\": %d,\n"
        " \"add_prefix_space\": false, \"bos_token\": \"<|endoftext|>\",\n"
        " \"eos_token\": \"<|endoftext|>\", \"unk_token\": \"<|endoftext|>\"}\n", context);
    checkpoint_text(c, "tokenizer_config.json", text, (size_t)n);
    checkpoint_text(c, "vocab.json", vocab_json, strlen(vocab_json));
    checkpoint_text(c, "merges.txt", merges, strlen(merges));
}

// Whole numbers of a file that is one JSON object, by their keys: keys (n) -> values (n), clamped
// to an int. A key that is not there leaves its value.
static inline void json_read_counts(const char* path, const char* const* keys, int* values, int n) {
    size_t size;
    char key[64], *text = read_file(path, &size);
    Json j = {text, text + size, path};
    json_need(&j, '{');
    for (int item = 0; json_next(&j, '}', &item);) {
        int i = 0;
        json_string(&j, key, sizeof key);  // a longer one is none of ours, cut or not
        json_need(&j, ':');
        while (i < n && strcmp(key, keys[i]) != 0) i++;
        uint64_t x = i < n ? json_count(&j) : 0;
        if (i == n) json_skip(&j);
        else values[i] = x > INT32_MAX ? INT32_MAX : (int)x;
    }
    json_end(&j);
    free(text);
}

// -------------------------------------------------------------------------------------------------
// Whether a checkpoint is whole. Nothing here ends the program: a broken one is passed over.

// A regular file, or NULL.
static inline FILE* open_in_folder(const char* folder, const char* name) {
    char* path = xprintf("%s/%s", folder, name);
    struct stat info;
    int regular = stat(path, &info) == 0 && S_ISREG(info.st_mode);  // a FIFO would be waited for
    FILE* file = regular ? fopen(path, "rb") : NULL;
    free(path);
    return file;
}

// Whether a file has this size and this content. Reading it all finds what the disk has lost.
static inline int file_matches(
    const char* folder, const char* name, uint64_t size, uint32_t crc) {
    static char piece[1 << 16];
    uint64_t total = 0;
    uint32_t found = 0;
    FILE* file = open_in_folder(folder, name);
    if (!file) return 0;
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0; total += n) {
        found = crc32c(found, piece, n);
    }
    fclose(file);
    return total == size && found == crc;
}

// The line that ends CHECKSUMS, over the size bytes before it; the caller frees it.
static inline char* last_line_of_sums(const char* sums, size_t size) {
    return xprintf("# %zu %08x\n", size, crc32c(0, sums, size));
}

// Whether a folder holds every file of its CHECKSUMS as it was written, and CHECKSUMS itself.
static inline int checkpoint_is_whole(const char* folder) {
    char text[2048], name[64];  // twice as long as what we write
    unsigned long long size;
    unsigned crc;
    FILE* file = open_in_folder(folder, "CHECKSUMS");
    size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[n] = 0;
    char* end = strstr(text, "\n# ");
    if (!end++) return 0;
    // Once the last line is right, the others are as they were written, none missing.
    char* last = last_line_of_sums(text, (size_t)(end - text));
    int whole = strcmp(end, last) == 0 && strlen(text) == n;
    free(last);
    for (char* line = text; whole && line < end; line = strchr(line, '\n') + 1) {
        whole = sscanf(line, "%63s %llu %x", name, &size, &crc) == 3 && !strchr(name, '/') &&
            file_matches(folder, name, size, crc);
    }
    return whole;
}

// -------------------------------------------------------------------------------------------------
// The folder of a run, and the names in it: step_N a checkpoint, step_N.tmp one being written,
// step_N.old one being removed, broken_N what a resumed run has passed over

// Returns 0, or errno. A new name is on the disk only when its folder is.
static inline int sync_folder(const char* path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return error == EINVAL ? 0 : error;  // EINVAL: this file system has no flush of a folder
}

// Removes a folder of files, or a file in its place. What cannot be removed stays.
static inline void remove_folder(const char* path) {
    DIR* folder = opendir(path);
    if (!folder) {
        unlink(path);
        return;
    }
    for (struct dirent* entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        unlinkat(dirfd(folder), entry->d_name, 0);
    }
    closedir(folder);
    rmdir(path);
}

// Makes a folder and all above it.
static inline void folder_make(const char* folder) {
    struct stat info;
    char* path = xprintf("%s/", folder);
    for (char* p = path + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;  // for a moment, the path ends here
        if (mkdir(path, 0777) && errno != EEXIST) {
            die_errno(EXIT_RESOURCES, path, "need to make it");
        }
    }
    if (stat(path, &info)) die_errno(EXIT_RESOURCES, folder, "need a folder");
    free(path);
}

// Ends the program unless the disk has room for so many bytes, as far as it says.
static inline void folder_need(const char* folder, double bytes) {
    struct statvfs disk;
    if (statvfs(folder, &disk)) return;  // it says nothing
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if (room < bytes) {
        die(EXIT_RESOURCES, folder, "found %.1f MiB free, need %.1f for checkpoints",
            room / (1 << 20), bytes / (1 << 20));
    }
}

// The step of a name "step_", 6 to 12 digits, suffix, exactly as we write it; else -1. A name that
// only resembles one is the user's: it is neither read nor removed.
static inline long long step_of(const char* name, const char* suffix) {
    char* end;
    if (strncmp(name, "step_", 5) != 0 || !isdigit((unsigned char)name[5])) return -1;
    long long step = strtoll(name + 5, &end, 10);
    char* written = xprintf("step_%06lld%s", step, suffix);
    if (strcmp(name, written) != 0 || end - name > 17) step = -1;
    free(written);
    return step;
}

// Removes what a crash has left of a checkpoint that was being written or removed.
static inline void folder_sweep(const char* out) {
    DIR* folder = opendir(out);
    if (!folder) return;
    for (struct dirent* entry; (entry = readdir(folder));) {
        if (step_of(entry->d_name, ".tmp") < 0 && step_of(entry->d_name, ".old") < 0) continue;
        char* path = xprintf("%s/%s", out, entry->d_name);
        remove_folder(path);
        free(path);
    }
    closedir(folder);
}

enum { MOST_CHECKPOINTS = 4096 };

// Adds a step to n falling ones, of which the first MOST_CHECKPOINTS stay. Returns their number.
static inline int add_step(long long* steps, int n, long long step) {
    if (n == MOST_CHECKPOINTS && step < steps[n - 1]) return n;
    int i = n < MOST_CHECKPOINTS ? n++ : n - 1;  // its place, from the end
    for (; i > 0 && steps[i - 1] < step; i--) steps[i] = steps[i - 1];
    steps[i] = step;
    return n;
}

// steps (MOST_CHECKPOINTS): of the folder's checkpoints, whole or not, the newest first; of too
// many the newest. Returns their number, or -1 when the folder cannot be read.
static inline int checkpoint_list(const char* out, long long* steps) {
    DIR* folder = opendir(out);
    int n = 0;
    if (!folder) return errno == ENOENT ? 0 : -1;
    for (struct dirent* entry; (entry = readdir(folder));) {
        long long step = step_of(entry->d_name, "");
        if (step >= 0) n = add_step(steps, n, step);
    }
    closedir(folder);
    return n;
}

// OUT/PREFIX_N; the caller frees it.
static inline char* checkpoint_path(const char* out, const char* prefix, long long step) {
    return xprintf("%s/%s_%06lld", out, prefix, step);
}

// The newest whole checkpoint up to a step, or -1. Broken ones are named and passed over; when
// there are only broken ones, the program ends.
static inline long long checkpoint_newest(const char* out, long long most_step) {
    long long steps[MOST_CHECKPOINTS];
    int n = checkpoint_list(out, steps), broken = 0;
    if (n < 0) die_errno(EXIT_RESOURCES, out, "need a readable folder");
    for (int i = 0; i < n; i++) {
        if (steps[i] > most_step) continue;
        char* path = checkpoint_path(out, "step", steps[i]);
        int whole = checkpoint_is_whole(path);
        if (!whole) fprintf(stderr, "warning: %s: not as its CHECKSUMS say, passed over\n", path);
        free(path);
        if (whole) return steps[i];
        broken++;
    }
    if (broken > 0) die(EXIT_RESUME, out, "found %d broken checkpoints, need a whole one", broken);
    return -1;
}

// Removes all but the newest `keep` and the newest up to step `spared`. Each is renamed first, so
// that a half-removed one is never taken for a checkpoint.
static inline void checkpoint_prune(const char* out, long long keep, long long spared) {
    long long steps[MOST_CHECKPOINTS];
    int n = checkpoint_list(out, steps), found = 0;
    for (int i = 0; i < n; i++) {
        int spare = steps[i] <= spared && !found;  // steps fall, so the first is the newest
        found |= spare;
        if (i < keep || spare) continue;
        char *path = checkpoint_path(out, "step", steps[i]), *old = xprintf("%s.old", path);
        if (rename(path, old) == 0) remove_folder(old);
        free(path), free(old);
    }
}

// -------------------------------------------------------------------------------------------------
// Beginning and committing a checkpoint: between the two come any number of files

// Makes the folder for the files. A checkpoint of this step that is whole is not written over.
static inline void checkpoint_begin(Checkpoint* c, const char* out, long long step) {
    memset(c, 0, sizeof *c);
    c->step = step;
    snprintf(c->path, sizeof c->path, "%s/step_%06lld", out, step);
    int n = snprintf(c->temporary, sizeof c->temporary, "%s.tmp", c->path);
    if ((size_t)n >= sizeof c->temporary) {
        c->error = ENAMETOOLONG;
        c->temporary[0] = 0;  // a name that is cut could be another folder's
        return;
    }
    folder_sweep(out);
    if (checkpoint_is_whole(c->path)) c->error = EEXIST;
    else if (mkdir(c->temporary, 0777)) c->error = errno;  // less the umask
}

// Gives the written folder its name; a broken one that has it goes when the new one is there.
// Returns 0, or errno, and then everything is as it was.
static inline int checkpoint_place(const Checkpoint* c, const char* out) {
    char* old = xprintf("%s.old", c->path);
    int error = 0, replaces = rename(c->path, old) == 0;  // mostly there is none
    if (rename(c->temporary, c->path)) error = errno;
    else if ((error = sync_folder(out))) rename(c->path, c->temporary);  // not known to last
    if (!error) remove_folder(old);
    else if (replaces) rename(old, c->path);
    free(old);
    return error;
}

// A run that has gone on from an older checkpoint does not know the ones beyond its step, which
// were broken: they must not count as the newest when old ones are removed.
static inline void checkpoint_set_aside(const char* out, long long step) {
    long long steps[MOST_CHECKPOINTS];
    int n = checkpoint_list(out, steps);
    for (int i = 0; i < n && steps[i] > step; i++) {
        char *path = checkpoint_path(out, "step", steps[i]);
        char* aside = checkpoint_path(out, "broken", steps[i]);
        remove_folder(aside);
        if (rename(path, aside) == 0) {
            fprintf(stderr, "warning: %s: passed over before, kept as %s\n", path, aside);
        }
        free(path), free(aside);
    }
}

// Returns 0 when the checkpoint is on the disk, whole; else errno, and nothing of it is left.
static inline int checkpoint_commit(Checkpoint* c, const char* out) {
    char* last = last_line_of_sums(c->sums, strlen(c->sums));
    checkpoint_open(c, "CHECKSUMS");
    checkpoint_write(c, c->sums, strlen(c->sums));
    checkpoint_write(c, last, strlen(last));
    checkpoint_close(c, "CHECKSUMS");
    free(last);
    if (!c->error) c->error = sync_folder(c->temporary);
    if (!c->error && !checkpoint_is_whole(c->temporary)) c->error = EIO;
    if (!c->error) c->error = checkpoint_place(c, out);
    if (c->error) remove_folder(c->temporary);
    else checkpoint_set_aside(out, c->step);
    return c->error;
}

#endif
