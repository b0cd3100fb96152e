// options.h: the command line of every program here, from one table a program.
//
// A table row is one option; the parser, the help text, the printed settings and the file of a
// run's settings all come from it. Both `--name value` and `--name=value` are read, and a letter
// as `-n value`; a value that begins with -- only behind a '='. A name is its field's name with '-'
// for '_'. Nothing is guessed: an unknown name, junk behind a number or a value out of range ends
// the program with one line and code 2, or 3 where it comes from a file.
#ifndef OPTIONS_H
#define OPTIONS_H
#include "tokens.h"
#include <math.h>
#include <stddef.h>

// Kinds of values. A COUNT has 64 bits, a REAL a double, a FLAG an int (it takes no value), a TEXT
// and a CHOICE a const char*. The value `auto`, where the default is auto, is kept as AUTO or NAN.
typedef enum { COUNT, REAL, TEXT, CHOICE, FLAG } OptionKind;
#define AUTO (-1)
typedef int64_t OptionCount __attribute__((may_alias));  // an int64_t or a long long

typedef struct {
    const char* name;   // the field's name
    char letter;        // 0: none
    OptionKind kind;
    size_t field;       // offset in the program's struct of options
    const char* value;  // the default, as a person would write it
    double low, high;   // bounds of a COUNT or a REAL, both allowed
    const char* help;   // a CHOICE's help begins with its words: "one|two|three: what it is"
} Option;

typedef struct {
    const Option* rows;
    int n_rows;
    void* fields;       // the program's struct of options
    char given[128];    // by row (128 at most): set on the command line
} OptionTable;

// -------------------------------------------------------------------------------------------------
// Names: the field's underscores are typed as hyphens

// Whether so many characters of text are the option's name as it is typed.
static inline int option_is(const Option* row, const char* text, size_t length) {
    if (strlen(row->name) != length) return 0;
    for (size_t i = 0; i < length; i++) {
        if ((row->name[i] == '_' ? '-' : row->name[i]) != text[i]) return 0;
    }
    return 1;
}

// As it is typed, without the hyphens in front; valid until the next call.
static inline const char* option_name(const Option* row) {
    static char name[64];
    snprintf(name, sizeof name, "%s", row->name);
    for (char* p = name; *p; p++) *p = *p == '_' ? '-' : *p;
    return name;
}

// The number of letters to insert, delete or change between a and the field's name b (Levenshtein).
// row[j] is the distance of what has been read of a to the first j letters of b, of which 63 count.
static inline int edit_distance(const char* a, const char* b) {
    int row[64], n = (int)strlen(b);
    if (n > 63) n = 63;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int change = diagonal + (a[i - 1] != (b[j - 1] == '_' ? '-' : b[j - 1]));
            int shift = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            diagonal = row[j];
            row[j] = change < shift ? change : shift;
        }
    }
    return row[n];
}

// For the message about a name that is none.
static inline const Option* option_nearest(const OptionTable* table, const char* name) {
    const Option* best = table->rows;
    for (int i = 1; i < table->n_rows; i++) {
        const Option* row = &table->rows[i];
        if (edit_distance(name, row->name) < edit_distance(name, best->name)) best = row;
    }
    return best;
}

// -------------------------------------------------------------------------------------------------
// Values: text to field and back

// Ends the program for a value from the command line (path NULL) or from a file.
__attribute__((noreturn)) static inline void option_die(
    const Option* row, const char* text, const char* path, const char* need) {
    const char* name = option_name(row);
    if (path) die(EXIT_INPUT, path, "found %s '%s', need %s", name, text, need);
    die(EXIT_USAGE, xprintf("--%s", name), "found '%s', need %s", text, need);
}

// Decimal numbers only: strtod would also take spaces, hexadecimal, nan and inf. A COUNT passes
// through a double, which is exact as bounds are below 2^53.
static inline double option_number(const Option* row, const char* text, const char* path) {
    int is_count = row->kind == COUNT, may_be_auto = !strcmp(row->value, "auto");
    if (may_be_auto && !strcmp(text, "auto")) return is_count ? AUTO : (double)NAN;
    char* end = NULL;
    double x = is_count ? (double)strtoll(text, &end, 10) : strtod(text, &end);
    int junk = end == text || *end || text[strspn(text, "0123456789+-.eE")];
    if (junk || !(x >= row->low && x <= row->high)) {
        const char* kind = is_count ? "a whole number" : "a number";
        option_die(row, text, path, xprintf("%s from %.15g to %.15g%s", kind, row->low, row->high,
            may_be_auto ? ", or auto" : ""));
    }
    return x;
}

// text, if it is one of the words that begin the row's help.
static inline const char* option_choice(const Option* row, const char* text, const char* path) {
    size_t n = strlen(text), all = strcspn(row->help, ":");
    for (const char* word = row->help; word < row->help + all; word += strcspn(word, "|:") + 1) {
        if (n == strcspn(word, "|:") && !strncmp(word, text, n)) return text;
    }
    option_die(row, text, path, xprintf("one of %.*s", (int)all, row->help));
}

// Sets a field from text, which must stay where it is kept (TEXT, CHOICE). path: as in option_die.
static inline void option_set(
    OptionTable* table, const Option* row, const char* text, const char* path) {
    char* field = (char*)table->fields + row->field;
    switch (row->kind) {
    case COUNT: *(OptionCount*)field = (int64_t)option_number(row, text, path); break;
    case REAL: *(double*)field = option_number(row, text, path); break;
    case TEXT: *(const char**)field = text; break;
    case CHOICE: *(const char**)field = option_choice(row, text, path); break;
    case FLAG: *(int*)field = text[0] == '1'; break;
    }
}

// The value as text that option_set reads back to the same value, bit by bit.
static inline const char* option_text(const OptionTable* table, const Option* row, char text[32]) {
    const char* field = (const char*)table->fields + row->field;
    int is_auto = 0;
    if (row->kind == COUNT) {
        long long x = *(const OptionCount*)field;
        is_auto = x == AUTO;
        snprintf(text, 32, "%lld", x);
    } else if (row->kind == REAL) {
        double x = *(const double*)field;
        is_auto = isnan(x);
        for (int digits = 15; digits <= 17; digits++) {  // 17 are always enough
            snprintf(text, 32, "%.*g", digits, x);
            if (strtod(text, NULL) == x) break;
        }
    } else if (row->kind == FLAG) {
        snprintf(text, 32, "%d", *(const int*)field);
    } else {
        return *(const char* const*)field;
    }
    return is_auto && !strcmp(row->value, "auto") ? "auto" : text;
}

// Whether the command line has set a field.
static inline int option_given(const OptionTable* table, const char* name) {
    for (int i = 0; i < table->n_rows; i++) {
        if (!strcmp(table->rows[i].name, name)) return table->given[i];
    }
    return 0;
}

// -------------------------------------------------------------------------------------------------
// The command line

// A line an option, with its default in brackets.
static inline void options_print_help(const OptionTable* table) {
    for (int i = 0; i < table->n_rows; i++) {
        const Option* row = &table->rows[i];
        char letter[4] = {row->letter ? '-' : ' ', row->letter ? row->letter : ' ', 0, 0};
        printf("  %s --%-18s %s", letter, option_name(row), row->help);
        if (row->kind != FLAG && row->value[0]) printf(" [%s]", row->value);
        printf("\n");
    }
}

// NULL when there is none.
static inline const Option* option_named(
    const OptionTable* table, const char* name, size_t length) {
    for (int i = 0; i < table->n_rows; i++) {
        if (option_is(&table->rows[i], name, length)) return &table->rows[i];
    }
    return NULL;
}

// arg: "--name" or "-n", of which length characters are before a '='.
static inline const Option* option_find(const OptionTable* table, const char* arg, size_t length) {
    const Option* row = NULL;
    if (length > 2 && arg[1] == '-') row = option_named(table, arg + 2, length - 2);
    for (int i = 0; i < table->n_rows && length == 2; i++) {
        if (arg[1] == table->rows[i].letter) row = &table->rows[i];
    }
    if (row) return row;
    if (length == 2) die(EXIT_USAGE, arg, "no such option, need one of --help");
    const char* name = arg + strspn(arg, "-");  // one hyphen is a mistake for two
    row = option_nearest(table, xprintf("%.*s", (int)strcspn(name, "="), name));
    die(EXIT_USAGE, arg, "no such option, need --%s, the nearest, or another of --help",
        option_name(row));
}

// Sets every field to its default, then reads the arguments. Those without a hyphen in front are
// moved to the front of argv, in order; returns how many.
static inline int options_parse(OptionTable* table, int argc, char** argv) {
    int n_plain = 0;  // arguments that are no options
    for (int i = 0; i < table->n_rows; i++) {
        const Option* row = &table->rows[i];
        option_set(table, row, row->kind == FLAG ? "0" : row->value, NULL);
    }
    for (int i = 1; i < argc; i++) {
        char* arg = argv[i];
        if (arg[0] != '-' || !arg[1]) {
            argv[n_plain++] = arg;
            continue;
        }
        const Option* row = option_find(table, arg, strcspn(arg, "="));
        const char* value = strchr(arg, '=');
        if (row->kind == FLAG && value) die(EXIT_USAGE, arg, "found a value, need none");
        if (value) value++;
        else if (row->kind == FLAG) value = "1";
        else if (i + 1 < argc && strncmp(argv[i + 1], "--", 2) != 0) value = argv[++i];
        else die(EXIT_USAGE, arg, "found no value, need one");
        option_set(table, row, value, NULL);
        table->given[row - table->rows] = 1;
    }
    return n_plain;
}

// -------------------------------------------------------------------------------------------------
// A run's settings in a file: name, tab, value, an option a line; flags are of one call only. A new
// line in a value is written as \n, a backslash as two

// Written beside, flushed to the disk, then renamed: a crash leaves the old file or the new one.
static inline void options_save(const OptionTable* table, const char* path) {
    char text[32], *temporary = xprintf("%s.tmp", path);
    FILE* file = fopen(temporary, "w");
    if (!file) die_errno(EXIT_RESOURCES, temporary, "need to write it");
    for (int i = 0; i < table->n_rows; i++) {
        const Option* row = &table->rows[i];
        if (row->kind == FLAG) continue;
        fprintf(file, "%s\t", option_name(row));
        for (const char* p = option_text(table, row, text); *p; p++) {
            if (*p == '\n' || *p == '\\') fputc('\\', file);
            fputc(*p == '\n' ? 'n' : *p, file);
        }
        fputc('\n', file);
    }
    int failed = fflush(file) || ferror(file) || fsync(fileno(file));  // now or before
    if (fclose(file) || failed || rename(temporary, path)) {
        die_errno(EXIT_RESOURCES, path, "need to write it");
    }
    free(temporary);
}

// Takes the escapes out of a value, in place; returns 0 where there is one that we do not write.
static inline int option_unescape(char* text) {
    char* to = text;
    for (const char* from = text; *from; from++) {
        char c = *from;
        if (c == '\\' && *++from != 'n' && *from != '\\') return 0;
        *to++ = c == '\\' && *from == 'n' ? '\n' : c;
    }
    *to = 0;
    return 1;
}

// Sets what the command line does not give; a file that is not there sets nothing.
static inline void options_restore(OptionTable* table, const char* path) {
    struct stat info;
    size_t size;
    if (stat(path, &info)) return;
    char *text = read_file(path, &size), *next;  // stays: options point into it
    for (char* line = text; line < text + size; line = next) {
        char *value = line + strcspn(line, "\t\n"), *end = line + strcspn(line, "\n");
        int is_line = *value == '\t' && *end == '\n';
        *value++ = *end = 0;
        next = end + 1;
        if (!is_line || !option_unescape(value)) {
            die(EXIT_INPUT, path, "found '%s', need lines of a name, a tab and a value", line);
        }
        const Option* row = option_named(table, line, strlen(line));
        if (!row || row->kind == FLAG) die(EXIT_INPUT, path, "found '%s', need an option", line);
        if (!table->given[row - table->rows]) option_set(table, row, value, path);
    }
}

#endif
