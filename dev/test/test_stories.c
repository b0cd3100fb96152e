// test_stories.c: data/stories.c, read back by its own grammar and by a reader that knows none.
//
//     cc -O2 dev/test/test_stories.c -o build/test_stories -lm
//     build/test_stories ./stories        the tests; the files are those of the program given
//     build/test_stories --check FILE     which stories of FILE, parted by blank lines, have faults
//
// The floor is exact if every text has one derivation: a search finds all of them. What the stories
// say is checked by patterns over their words that keep books on who has what, where it is and how
// many. Of the generator they use nothing but the lists of names and numbers.
#define main stories_main
#include "../../data/stories.c"
#undef main
#include "check.h"
#include <sys/wait.h>

// ------------------------------------------------------------------------------------------------
// Reading by the grammar

// Whether the given choices, and the first alternative from there on, tell the target. What is left
// in *s is as far as they do. A function of its own, since a longjmp spares no local variable.
static int tells_target(Story* s) {
    if (setjmp(s->mismatch)) return 0;
    tell(s);
    return s->length == s->target_length;
}

// Counts the derivations of a text by depth-first search over the choices. *best is the last one,
// or where there is none, the longest beginning that the grammar can tell.
static int read_story(Story* best, const char* text, int length) {
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    int derivations = 0;
    s->target = text;
    s->target_length = length;
    best->length = -1;
    do {
        int is_told = tells_target(s);
        derivations += is_told;
        if (is_told || (derivations == 0 && s->length > best->length)) *best = *s;
        // Next: another alternative at the last choice that has one left; later ones are void.
        while (s->n_choices > 0) {
            Choice* last = &s->choices[s->n_choices - 1];
            if (++last->picked < last->n) break;
            s->n_choices--;
        }
        s->n_given = s->n_choices;
    } while (s->n_given > 0);
    free(s);
    return derivations;
}

// Reports each story of a file that the grammar cannot tell, with the place where it ends.
static int check_file(const char* path) {
    size_t size;
    char* text = read_file(path, &size);
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    int n_stories = 0, n_right = 0;
    for (char* story = text + strspn(text, "\n"); *story; n_stories++) {
        char* end = strstr(story, "\n\n");
        if (end == NULL) end = text + strlen(text);
        int n = (int)(end - story);
        if (*end == 0 && n > 0 && end[-1] == '\n') n--;
        if (n < MAX_TEXT && read_story(s, story, n) == 1) {
            n_right++;
        } else {
            int from = s->length > 40 ? s->length - 40 : 0, rest = n - s->length;
            printf("story %d, byte %d: %.*s >>> %.*s\n", n_stories + 1, s->length, s->length - from,
                story + from, rest > 20 ? 20 : rest, story + s->length);
        }
        story = end + strspn(end, "\n");
    }
    printf("%d of %d stories are faultless\n", n_right, n_stories);
    return n_right < n_stories;
}

static int same_choices(const Story* a, const Story* b) {
    int same = a->n_choices == b->n_choices;
    for (int i = 0; same && i < a->n_choices; i++) {
        const Choice *x = &a->choices[i], *y = &b->choices[i];
        same = x->offset == y->offset && x->picked == y->picked && x->n == y->n;
    }
    return same;
}

// The story with the word of a mark replaced by another one of its sort, which makes it false.
// Returns the length of the text.
static int falsify(char text[MAX_TEXT], const Story* s, int m) {
    const Mark* mark = &s->marks[m];
    int n = SORTS[sort_of(mark->form)].n;
    int other = (mark->value + 1 + (s->length + m) % (n - 1)) % n;
    const char* rest = s->text + mark->offset + 1 + strlen(words_of(s, mark->form, mark->value));
    return snprintf(text, MAX_TEXT, "%.*s %s%.*s", mark->offset, s->text,
        words_of(s, mark->form, other), (int)(s->text + s->length - rest), rest);
}

// How many bytes behind its offset choice c shows: where the text begins to differ with another one
// instead. Negative if the text differs before.
static int delay_of(const Story* told, Story* scratch, int c) {
    *scratch = *told;
    Choice* choice = &scratch->choices[c];
    choice->picked = (choice->picked + 1) % choice->n;
    scratch->n_given = c + 1;
    tell(scratch);
    int same = 0;
    while (same < told->length && scratch->text[same] == told->text[same]) same++;
    return same - told->choices[c].offset;
}

static void test_placement(void) {
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    Story* scratch = (Story*)xmalloc(1, sizeof(Story));
    int longest = 0, n_early = 0, n = 0;
    double sum = 0;
    for (int i = 0; i < 500; i++) {
        tell(s);
        for (int c = 0; c < s->n_choices; c++, n++) {
            int delay = delay_of(s, scratch, c);
            sum += delay;
            n_early += delay < 0;
            if (delay > longest) longest = delay;
        }
    }
    check("choices that show before their offset", n_early, 0);
    check("bytes from its offset to where a choice shows: mean", sum / n, 2);
    check("bytes from its offset to where a choice shows: largest", longest, 20);
    free(s);
    free(scratch);
}

static void test_derivations(void) {
    enum { N = 4000 };
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    Story* found = (Story*)xmalloc(1, sizeof(Story));
    int n_ambiguous = 0, n_other = 0, n_false = 0, n_tried = 0, most_choices = 0, longest = 0;
    double worst = 0;
    for (int i = 0; i < N; i++) {
        tell(s);
        n_ambiguous += read_story(found, s->text, s->length) != 1;
        n_other += !same_choices(s, found);
        worst = fmax(worst, fabs(story_nats(s) - story_nats(found)));
        for (int m = 0; i % 8 == 0 && m < s->n_marks; m++, n_tried++) {
            char text[MAX_TEXT];
            n_false += read_story(found, text, falsify(text, s, m)) != 0;
        }
        if (s->n_choices > most_choices) most_choices = s->n_choices;
        if (s->length > longest) longest = s->length;
    }
    check("of 4000 stories: those without exactly one derivation", n_ambiguous, 0);
    check("of 4000 stories: those read by other choices than told", n_other, 0);
    check("largest difference of -ln p, told and read", worst, 0);
    check("stories read although a decided word was replaced", n_false, 0);
    check_true("decided words were replaced, in more than 1000 cases", n_tried > 1000);
    check("choices in a story at most", most_choices, MAX_CHOICES / 2);
    check("bytes in a story at most", longest, MAX_TEXT / 1.5);
    free(s);
    free(found);
}

// ------------------------------------------------------------------------------------------------
// Statistics

static int compare_u64(const void* a, const void* b) {
    uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
    return (x > y) - (x < y);
}

static uint64_t hash_text(const char* text, int n) {
    uint64_t hash = (uint64_t)n;
    for (int i = 0; i < n; i++) hash = splitmix64(hash ^ (unsigned char)text[i]);
    return hash;
}

static int count_distinct(uint64_t* values, int n) {
    int distinct = 0;
    qsort(values, (size_t)n, sizeof(*values), compare_u64);
    for (int i = 0; i < n; i++) distinct += i == 0 || values[i] != values[i - 1];
    return distinct;
}

// Adds the hashes of a story's words, in lower case. Returns how many.
static int hash_words(const Story* s, uint64_t* words) {
    int n = 0;
    char word[64];
    for (int i = 0, length = 0; i <= s->length; i++) {
        int c = i < s->length ? (unsigned char)s->text[i] : ' ';
        if (isalpha(c) || (c == '-' && length > 0)) word[length++] = (char)tolower(c);
        else if (length > 0) words[n++] = hash_text(word, length), length = 0;
    }
    return n;
}

static void test_variety(void) {
    enum { N = 50000 };
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    uint64_t* stories = (uint64_t*)xmalloc(N, 8);
    uint64_t* words = (uint64_t*)xmalloc((size_t)N * 16, 8);
    int n_words = 0, n_sampled = 0, least = 1 << 30, most = 0, picked[16][16] = {{0}};
    double nats = 0, chi2 = 0, freedom = 0;
    for (int i = 0; i < N; i++) {
        uint64_t these[512];
        tell(s);
        stories[i] = hash_text(s->text, s->length);
        nats += story_nats(s) / N;
        int n = hash_words(s, these);
        n_words += n;
        if (n < least) least = n;
        if (n > most) most = n;
        if (i % 10 == 0) memcpy(words + n_sampled, these, (size_t)n * 8), n_sampled += n;
        for (int c = 0; c < s->n_choices; c++) {
            if (s->choices[c].n < 16) picked[s->choices[c].n][s->choices[c].picked]++;
        }
    }
    // Chi-square of each alternative's share, over all choices among equally many.
    for (int n = 2; n < 16; n++) {
        double total = 0;
        for (int k = 0; k < n; k++) total += picked[n][k];
        for (int k = 0; k < n && total > 0; k++) {
            chi2 += (picked[n][k] - total / n) * (picked[n][k] - total / n) / (total / n);
        }
        if (total > 0) freedom += n - 1;
    }
    int distinct = count_distinct(words, n_sampled);
    printf("%.2f nats a story, %.1f words (%d to %d), %d distinct words\n", nats,
        (double)n_words / N, least, most, distinct);
    check("of 50000 stories: repeated ones", N - count_distinct(stories, N), 0);
    check("fewer than 10^12 stories: ln 10^12 over mean -ln p", log(1e12) / nats, 1);
    check("fewer than 400 distinct words in 5000 stories", 400.0 / distinct, 1);
    check("alternatives are equally likely: chi-square, in standard deviations",
        fabs(chi2 - freedom) / sqrt(2 * freedom), 4);
    check_true("stories of 50 to 220 words", least >= 50 && most <= 220);
    free(s);
    free(stories);
    free(words);
}

// ------------------------------------------------------------------------------------------------
// A reader that knows no grammar: patterns over the words of a story, which keep books
//
// In a pattern, N is a name or a pronoun, T a thing, P a place with its preposition, Q a place's
// noun, # a number, _ any word; a|b is one of two words; the rest stands for itself.

enum { MAX_WORDS = 400, MAX_CAPTURES = 4, WORD = 16, LIES = -1, UNKNOWN = -2 };

typedef struct {
    char word[MAX_WORDS][WORD];  // or a sign, by itself
    int person[MAX_WORDS];       // index of the name, or -1
    int n;
} Words;

// What has been read: who has what, where it is, how many, who hides where.
typedef struct {
    char thing[4][WORD], place[4][WORD];
    int owner[4], n_things;  // owner LIES: it is in its place
    int number[32];          // by index of the name
    char hideout[32][WORD];
    int buyer, seller, moved;  // of a trade; the thing that has been carried off
    int n_checked, n_wrong;
} Books;

typedef struct {
    int who[MAX_CAPTURES], number[MAX_CAPTURES];
    const char* noun[MAX_CAPTURES];  // things and places
    int n_who, n_numbers, n_nouns;
} Match;

static int find_word(const char* const* table, int n, const char* word) {
    for (int i = 0; i < n; i++) {
        if (strcmp(word, table[i]) == 0) return i;
    }
    return -1;
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-"

// "Aunt Rose" and "Uncle Bill" are one word.
static void split_words(Words* words, const char* text) {
    words->n = 0;
    for (const char* p = text; *p;) {
        size_t n = strspn(p, LETTERS);
        int is_double = !strncmp(p, "Aunt ", 5) || !strncmp(p, "Uncle ", 6);
        if (is_double) n += 1 + strspn(p + n + 1, LETTERS);
        if (n == 0) n = 1;
        if (*p != ' ') {
            char* word = words->word[words->n];
            snprintf(word, WORD, "%.*s", (int)n, p);
            words->person[words->n++] = find_word(NAMES, LENGTH(NAMES), word);
        }
        p += n;
    }
}

// -1: not a pronoun; else whether it means a girl or woman.
static int pronoun_gender(const char* word) {
    static const char* const pronouns[] = {"he", "He", "him", "she", "She", "her"};
    int i = find_word(pronouns, 6, word);
    return i < 0 ? -1 : i >= 3;
}

static int is_woman(int person) { return FEMALE >> person & 1; }

// Who is named at a word, or meant by it: the last one named before of that gender, not `other`.
static int person_at(const Words* words, int at, int other) {
    int gender = pronoun_gender(words->word[at]);
    if (gender < 0) return words->person[at];
    for (int i = at - 1; i >= 0; i--) {
        int person = words->person[i];
        if (person >= 0 && person != other && is_woman(person) == gender) return person;
    }
    return -1;
}

// Whether a word is one of those that a bar parts in the first n bytes of p.
static int is_one_of(const char* word, const char* p, size_t n) {
    for (const char* end = p + n; p < end; p += strcspn(p, "| ") + 1) {
        if (strlen(word) == strcspn(p, "| ") && !strncmp(word, p, strlen(word))) return 1;
    }
    return 0;
}

// Whether the pattern fits the words from `at` on. What it captures goes into *m, in order.
static int match(const Words* words, int at, const char* pattern, Match* m) {
    memset(m, 0, sizeof(*m));
    for (const char* p = pattern; *p; at++) {
        size_t n = strcspn(p, " ");
        char kind = n == 1 ? *p : 0;
        if (at >= words->n) return 0;
        const char* word = words->word[at];
        if (kind == 'N') {
            int person = person_at(words, at, m->n_who > 0 ? m->who[0] : -1);
            if (person < 0) return 0;
            m->who[m->n_who++] = person;
        } else if (kind == '#') {
            int number = find_word(NUMBERS, LENGTH(NUMBERS), word);
            if (number < 0) return 0;
            m->number[m->n_numbers++] = number;
        } else if (kind == 'T' || kind == 'Q' || kind == '_') {
            if (!isalpha((unsigned char)*word)) return 0;
            if (kind != '_') m->noun[m->n_nouns++] = word;
        } else if (kind == 'P') {
            if (!is_one_of(word, "in|under|behind", 15) || at + 2 >= words->n) return 0;
            m->noun[m->n_nouns++] = words->word[at += 2];
        } else if (!is_one_of(word, p, n)) {
            return 0;
        }
        p += n;
        p += *p == ' ';
    }
    return 1;
}

// The thing's place in the books. The first three are entered; the fourth place is for strangers.
static int entry(Books* b, const char* noun) {
    int i = 0;
    while (i < b->n_things && strcmp(b->thing[i], noun)) i++;
    if (i == b->n_things && i < 3) snprintf(b->thing[b->n_things++], WORD, "%s", noun);
    return i;
}

static void expect(Books* b, int so) {
    b->n_checked++;
    b->n_wrong += !so;
}

static int has(Books* b, int who, const char* noun) { return b->owner[entry(b, noun)] == who; }

static int lies(Books* b, const char* noun, const char* place) {
    return has(b, LIES, noun) && strcmp(b->place[entry(b, noun)], place) == 0;
}

static void lay(Books* b, const char* noun, const char* place) {
    b->owner[entry(b, noun)] = LIES;
    snprintf(b->place[entry(b, noun)], WORD, "%s", place);
}

// In a trade, all that the two have: one thing each.
static void exchange(Books* b, int x, int y) {
    for (int i = 0; i < b->n_things; i++) {
        if (b->owner[i] == x) b->owner[i] = y;
        else if (b->owner[i] == y) b->owner[i] = x;
    }
}

enum { OWNS, SPREAD, LAYS, MOVED, CARRIED, ABSENT, PRESENT, SPOKEN, MISSING, FETCHES, GIVES, ASKS,
    PROPOSES, AGREES, GETS, PASSES, TRADED, HAS, WAS, GATHERS, MORE, HANDS, LOSES, COUNTED, SUM,
    ALL, HIDES, FOUND, NOBODY_THERE, LAST, BETRAYED };

static const struct { const char* pattern; int event; } PATTERNS[] = {
    {"N had a|an _ T", OWNS}, {"N had brought a|an _ T", OWNS},
    {"a|an _ T P", SPREAD}, {"N put|left the T P", LAYS},
    {"borrowed|took|grabbed|stole the T and left|dropped it P", MOVED},
    {"played with the T and left it P", MOVED}, {"found it there and carried it to the Q", CARRIED},
    {"looked P , but the T was", ABSENT}, {"looked P , but there was only the T", PRESENT},
    {"looked P , and there was the T", PRESENT}, {"to the Q and found the T there", PRESENT},
    {"I left it P", SPOKEN}, {"It is P now", SPOKEN},
    {"looked P , but it|there was not|nothing", MISSING}, {"The T was still P", WAS},
    {"N ran|went|walked to the Q and picked up the T", FETCHES},
    {"so N gave N the T", GIVES}, {"so N asked N for the T and got it", ASKS},
    {"\" N , will you trade|swap the T for my T ? \" N asked", PROPOSES},
    {"and they traded", AGREES}, {"So N went|ran to N and got the T for the T", GETS},
    {"N gave the T to N for the T", PASSES}, {"N and N traded , too", TRADED}, {"N had the T", HAS},
    {"the _ T was with N", HAS}, {"the _ T was P", WAS}, {"who had the T now ? It was N", HAS},
    {"where was the T now ? It was P", WAS}, {"N _ # _ , and", GATHERS}, {"and N _ # .", GATHERS},
    {"N _ # more", MORE}, {"N gave # of _ _ to N", HANDS}, {"N lost # of", LOSES},
    {"N now had #", COUNTED}, {"I have # , \" said N", COUNTED},
    {"N had # and N had # , which made #", SUM}, {"we have # in all", ALL}, {"N hid P", HIDES},
    {"N ran|crept|tiptoed to the Q instead", HIDES}, {"P and found N", FOUND},
    {"looked P , but nobody was", NOBODY_THERE}, {"Only N was", LAST},
    {"I am P ! \" called|laughed N", FOUND},
    {"Look P , \" whispered N , and there was N", BETRAYED}};

static int sum_of(const Books* b) {
    int sum = 0;
    for (int i = 0; i < 32; i++) sum += b->number[i];
    return sum;
}

// Enters what a pattern has found into the books, or compares it with them.
static void keep_books(Books* b, int event, const Match* m) {
    const int *who = m->who, *number = m->number;
    const char *noun = m->noun[0], *second = m->noun[1];
    switch (event) {
    case OWNS: b->owner[entry(b, noun)] = who[0]; break;
    case SPREAD: lay(b, noun, second); break;
    case LAYS: expect(b, has(b, who[0], noun)), lay(b, noun, second); break;
    case MOVED:
        expect(b, has(b, LIES, noun)), lay(b, noun, second);
        b->moved = entry(b, noun);
        break;
    case CARRIED: snprintf(b->place[b->moved], WORD, "%s", noun); break;
    case ABSENT: expect(b, !lies(b, second, noun)); break;
    case PRESENT: expect(b, lies(b, second, noun)); break;
    case SPOKEN: expect(b, lies(b, b->thing[b->moved], noun)); break;
    case MISSING: expect(b, !lies(b, b->thing[b->moved], noun)); break;
    case FETCHES: expect(b, lies(b, second, noun)), b->owner[entry(b, second)] = who[0]; break;
    case GIVES: expect(b, has(b, who[0], noun)), b->owner[entry(b, noun)] = who[1]; break;
    case ASKS: expect(b, has(b, who[1], noun)), b->owner[entry(b, noun)] = who[0]; break;
    case PROPOSES:
        expect(b, has(b, who[0], noun) && has(b, who[1], second));
        b->seller = who[0], b->buyer = who[1];
        break;
    case AGREES: exchange(b, b->seller, b->buyer); break;
    case GETS:
        expect(b, has(b, who[1], noun) && has(b, who[0], second));
        exchange(b, who[0], who[1]);
        break;
    case PASSES:
        expect(b, has(b, who[0], noun) && has(b, who[1], second));
        exchange(b, who[0], who[1]);
        break;
    case TRADED: exchange(b, who[0], who[1]); break;
    case HAS: expect(b, has(b, who[0], noun)); break;
    case WAS: expect(b, lies(b, noun, second)); break;
    case GATHERS: b->number[who[0]] = number[0]; break;
    case MORE: b->number[who[0]] += number[0]; break;
    case HANDS: b->number[who[0]] -= number[0], b->number[who[1]] += number[0]; break;
    case LOSES: b->number[who[0]] -= number[0]; break;
    case COUNTED: expect(b, b->number[who[0]] == number[0]); break;
    case SUM:
        expect(b, b->number[who[0]] == number[0] && b->number[who[1]] == number[1]);
        expect(b, sum_of(b) == number[2]);
        break;
    case ALL: expect(b, sum_of(b) == number[0]); break;
    case HIDES: snprintf(b->hideout[who[0]], WORD, "%s", noun); break;
    case FOUND: expect(b, !strcmp(b->hideout[who[0]], noun)), b->hideout[who[0]][0] = 0; break;
    case LAST: expect(b, b->hideout[who[0]][0] != 0); break;
    case BETRAYED: expect(b, !strcmp(b->hideout[who[1]], noun)); break;
    case NOBODY_THERE:
        for (int i = 0; i < 32; i++) expect(b, strcmp(b->hideout[i], noun) != 0);
        break;
    }
}

static void read_events(Books* b, const Words* words, int* seen) {
    memset(b, 0, sizeof(*b));
    for (int i = 0; i < 4; i++) b->owner[i] = UNKNOWN;
    for (int at = 0; at < words->n; at++) {
        for (int p = 0; p < LENGTH(PATTERNS); p++) {
            Match m;
            if (!match(words, at, PATTERNS[p].pattern, &m)) continue;
            seen[p]++;
            keep_books(b, PATTERNS[p].event, &m);
        }
    }
}

// At "He" or "She": how many of that gender have been named since the last sentence began.
static int count_meant(const Words* words, int at) {
    uint32_t named = 0;
    for (int i = at - 1, ends = 0; i >= 0 && ends < 2; i--) {
        ends += strchr(".?!", words->word[i][0]) != NULL;
        int person = words->person[i];
        if (ends < 2 && person >= 0 && is_woman(person) == pronoun_gender(words->word[at])) {
            named |= 1u << person;
        }
    }
    return count(named);
}

// Faults of style: capitals, articles, spaces, quotes, and pronouns that could mean two people.
static int count_style_faults(const Words* words, const char* text) {
    int faults = 0, n_quotes = 0;
    for (int i = 0; i < words->n; i++) {
        const char *word = words->word[i], *next = i + 1 < words->n ? words->word[i + 1] : "x";
        char before = i > 0 ? words->word[i - 1][0] : '.';
        if (before == '"' && i > 1 && words->word[i - 2][0] == '.') before = '.';
        int starts = strchr(".?!", before) != NULL;
        n_quotes += word[0] == '"';
        if (starts && word[0] != '"' && !isupper((unsigned char)word[0])) faults++;
        if (!strcmp(word, "a") && strchr("aeiou", next[0])) faults++;
        if (!strcmp(word, "an") && !strchr("aeiou", next[0])) faults++;
        if ((!strcmp(word, "He") || !strcmp(word, "She")) && count_meant(words, i) != 1) faults++;
    }
    for (const char* p = text; *p; p++) {
        faults += *p < ' ' || *p > '~' || (p[0] == ' ' && (p[1] == ' ' || p[1] == 0));
        faults += p[0] == ' ' && strchr(",.?!", p[1]) != NULL;
    }
    return faults + n_quotes % 2 + (text[strlen(text) - 1] != '.');
}

static void test_sense(void) {
    enum { N = 4000 };
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    Words* words = (Words*)xmalloc(1, sizeof(Words));
    int n_wrong = 0, n_checked = 0, faults = 0, unseen = 0, seen[LENGTH(PATTERNS)] = {0};
    int n_false = 0, n_unnoticed = 0;
    s->random = 4;
    for (int i = 0; i < N; i++) {
        Books b;
        tell(s);
        s->text[s->length] = 0;
        split_words(words, s->text);
        read_events(&b, words, seen);
        int style = count_style_faults(words, s->text);
        if ((b.n_wrong || style) && n_wrong + faults == 0) printf("    %s\n", s->text);
        n_wrong += b.n_wrong;
        n_checked += b.n_checked;
        faults += style;
        for (int m = 0; i % 4 == 0 && m < s->n_marks; m++, n_false++) {
            char text[MAX_TEXT];
            falsify(text, s, m);
            split_words(words, text);
            read_events(&b, words, seen);
            n_unnoticed += b.n_wrong == 0;
        }
    }
    for (int p = 0; p < LENGTH(PATTERNS); p++) unseen += seen[p] < 10;
    check("of 4000 stories: statements against the books", n_wrong, 0);
    check_true("statements compared: more than 4 a story", n_checked > 4 * N);
    check("statements made false, unnoticed by the books", n_unnoticed, 0);
    check_true("statements were made false, in more than 3000 cases", n_false > 3000);
    check("patterns found fewer than ten times", unseen, 0);
    check("of 4000 stories: faults of style", faults, 0);
    free(s);
    free(words);
}

// ------------------------------------------------------------------------------------------------
// The files

static const char* program = "./stories";
static char folder[] = "/tmp/test_stories_XXXXXX";

// Runs the program. Returns its exit status, and the contents of its files if data is not NULL.
static int run(const char* options[], int n, char* data[4], size_t size[4]) {
    static const char* const files[] = {"train.txt", "val.txt", "val.floor", "questions.tsv"};
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        char* argv[16] = {(char*)program};
        for (int i = 0; i < n; i++) argv[i + 1] = (char*)options[i];
        if (freopen("/dev/null", "w", stdout) && freopen("/dev/null", "w", stderr)) {
            execv(program, argv);
        }
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    for (int i = 0; i < 4 && data; i++) {
        char* path = xprintf("%s/%s", folder, files[i]);
        data[i] = read_file(path, &size[i]);
        unlink(path);
        free(path);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Each story of val.txt is read, and its choices are summed up offset by offset.
static void test_floor(const char* val, const char* rows) {
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    int n_wrong = 0, n_rows = 0;
    double worst = 0;
    const char *story = val, *row = strchr(rows, '\n') + 1;
    check_true("val.floor begins with its header", !strncmp(rows, "offset\tnats\n", 12));
    while (*story) {
        const char* end = strstr(story, "\n\n");
        int n = end ? (int)(end - story) : (int)strlen(story);
        n_wrong += read_story(s, story, n) != 1;
        double nats = 0, last = -1;
        while (*row) {
            char* rest;
            double offset = strtod(row, &rest);
            if (offset >= (double)(story - val + n)) break;
            nats += strtod(rest, &rest);
            n_wrong += offset < (double)(story - val) || offset <= last || *rest != '\n';
            last = offset;
            row = rest + 1;
            n_rows++;
        }
        worst = fmax(worst, fabs(nats - story_nats(s)));
        story += end ? n + 2 : n;
    }
    check("val.floor: largest difference of a story's sum from -ln p", worst, 1e-6);
    check("val.floor: rows out of order or outside their story", n_wrong + (*row != 0), 0);
    check_true("val.floor: rows were read", n_rows > 1000);
    free(s);
}

static void test_files(void) {
    char *data[4], *again[4], *other[4];
    size_t size[4], size_again[4], size_other[4];
    const char* small[] = {"--out", folder, "--train-mb", "0.5", "--val-stories=100"};
    const char* large[] = {"--out", folder, "--train-mb", "1", "--val-stories=100"};
    const char* seed[] = {"--out", folder, "--train-mb", "0.5", "--val-stories=100", "--seed", "2"};
    check("exit code of the program", run(small, 5, data, size), 0);
    run(large, 5, again, size_again);
    run(seed, 7, other, size_other);
    int same = 1, differ = 1;
    for (int i = 1; i < 4; i++) {
        same &= size[i] == size_again[i] && !memcmp(data[i], again[i], size[i]);
    }
    for (int i = 0; i < 4; i++) differ &= strcmp(data[i], other[i]) != 0;
    check_true("same seed, longer train.txt: it begins alike", !memcmp(data[0], again[0], size[0]));
    check_true("same seed, longer train.txt: the other files are the same", same);
    check_true("another seed: all files differ", differ);
    int n_found = 0, n = 0;
    for (char* story = data[1]; story; n++) {
        char* end = strstr(story, "\n\n");
        if (end) *end = 0;
        n_found += strstr(again[0], story) != NULL;
        if (end) *end = '\n';
        story = end ? end + 2 : NULL;
    }
    check("stories in val.txt", abs(n - 100), 0);
    check("stories of val.txt in train.txt", n_found, 0);
    test_floor(data[1], data[2]);
    const char* bad[][3] = {{"--out", folder, "--seed=1x"}, {"--out", folder, "--train-mb=-1"},
        {"--out", folder, "--nonsense=1"}, {"--out", folder, "plain"}, {"--seed=1", "", ""}};
    int n_accepted = 0;
    for (int i = 0; i < LENGTH(bad); i++) {
        n_accepted += run(bad[i], i == 4 ? 1 : 3, NULL, NULL) != EXIT_USAGE;
    }
    check("bad command lines without exit code 2", n_accepted, 0);
    for (int i = 0; i < 4; i++) free(data[i]), free(again[i]), free(other[i]);
}

// ------------------------------------------------------------------------------------------------
// The questions

enum { N_QUESTIONS = 2000, N_KINDS_ASKED = 4 };

typedef struct {
    int right;
    char *context, *ending[N_ENDINGS];
} Question;

static void parse_questions(char* text, Question* questions) {
    for (int i = 0; i < N_QUESTIONS; i++) {
        Question* q = &questions[i];
        q->right = atoi(text);
        q->context = strchr(text, '\t') + 1;
        char* field = q->context;
        for (int e = 0; e < N_ENDINGS; e++) {
            field = strchr(field, '\t');
            *field++ = 0;
            q->ending[e] = field;
        }
        text = strchr(field, '\n');
        *text++ = 0;
    }
}

// Where a word stands in the context for the first (or the last) time; -1: nowhere.
static int find_mention(const char* context, const char* word, int last) {
    int n = (int)strlen(word), at = -1;
    for (const char* p = context; (p = strstr(p, word)) != NULL && (at < 0 || last); p++) {
        if (!isalpha((unsigned char)p[n]) && (p == context || !isalpha((unsigned char)p[-1]))) {
            at = (int)(p - context);
        }
    }
    return at;
}

// Ways to answer without keeping track. Each returns a label.
static int guess_mention(const Question* q, int last) {
    int best = 0, best_at = -1;
    for (int e = 0; e < N_ENDINGS; e++) {
        int at = find_mention(q->context, q->ending[e] + 1, last);
        if (at < 0 || (best_at >= 0 && (last ? at < best_at : at > best_at))) continue;
        best = e;
        best_at = at;
    }
    return best;
}

static int guess_frequent(const Question* questions, const Question* q) {
    int best = 0, best_n = -1;
    for (int e = 0; e < N_ENDINGS; e++) {
        int n = 0;
        for (int i = 0; i < N_QUESTIONS; i++) {
            n += !strcmp(questions[i].ending[questions[i].right], q->ending[e]);
        }
        if (n > best_n) best = e, best_n = n;
    }
    return best;
}

static void test_guesses(const Question* questions) {
    static const char* const kinds[] = {"who", "what", "where", "how many"};
    for (int kind = 0; kind < N_KINDS_ASKED; kind++) {
        int n = 0, right[4] = {0};
        for (int i = 0; i < N_QUESTIONS; i++) {
            if (i / N_ENDINGS % N_KINDS_ASKED != kind) continue;
            const Question* q = &questions[i];
            n++;
            right[0] += q->right == 0;
            right[1] += q->right == guess_frequent(questions, q);
            right[2] += q->right == guess_mention(q, 0);
            right[3] += q->right == guess_mention(q, 1);
        }
        printf("%s: %d questions; right are first label %.3f, frequent %.3f, first mentioned %.3f, "
            "last mentioned %.3f\n", kinds[kind], n, right[0] / (double)n, right[1] / (double)n,
            right[2] / (double)n, right[3] / (double)n);
        int best = 0;
        for (int g = 0; g < 4; g++) best = right[g] > best ? right[g] : best;
        check("right by the best of these guesses, as a share", best / (double)n, 0.6);
    }
}

// Of the four endings, only the right one goes on with a story that the grammar can tell.
static void test_questions(void) {
    char* data[4];
    size_t size[4];
    const char* options[] = {"--out", folder, "--train-mb=0", "--questions=2000"};
    Question* questions = (Question*)xmalloc(N_QUESTIONS, sizeof(Question));
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    run(options, 4, data, size);
    parse_questions(data[3], questions);
    int labels[N_ENDINGS] = {0}, n_bad = 0, n_undecided = 0;
    for (int i = 0; i < N_QUESTIONS; i++) {
        const Question* q = &questions[i];
        labels[q->right]++;
        for (int e = 0; e < N_ENDINGS; e++) {
            n_bad += q->ending[e][0] != ' ';
            for (int f = 0; f < e; f++) n_bad += !strcmp(q->ending[e], q->ending[f]);
            if (i % 4 != 0) continue;
            char* text = xprintf("%s%s", q->context, q->ending[e]);
            read_story(s, text, (int)strlen(text));
            n_undecided += (s->length == (int)strlen(text)) != (e == q->right);
            free(text);
        }
    }
    for (int e = 0; e < N_ENDINGS; e++) n_bad += labels[e] != N_QUESTIONS / N_ENDINGS;
    check("labels out of balance, endings equal or without a space", n_bad, 0);
    check("endings of 500 questions that the story does not decide", n_undecided, 0);
    test_guesses(questions);
    for (int i = 0; i < 4; i++) free(data[i]);
    free(questions);
    free(s);
}

int main(int argc, char** argv) {
    if (argc == 3 && !strcmp(argv[1], "--check")) return check_file(argv[2]);
    if (argc > 1) program = argv[1];
    if (access(program, X_OK) != 0) die_errno(EXIT_USAGE, program, "need the program to test");
    if (mkdtemp(folder) == NULL) die_errno(EXIT_RESOURCES, folder, "need a folder");
    test_derivations();
    test_placement();
    test_variety();
    test_sense();
    test_files();
    test_questions();
    rmdir(folder);
    return checks_close();
}
