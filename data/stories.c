// stories.c: a seeded generator of short English stories, the built-in training corpus.
//
//     cc -O3 data/stories.c -o stories -lm && ./stories --out data/stories
//
// A story has two to four people who carry, trade, lose and find a few things in a few places, play
// hide-and-seek, or count what they gather. Everything stays where the story has put it, so a model
// predicts the next word well only if it keeps track of who has what, where it is and how many.
//
// The floor. Every random decision is one call of choose(), uniform over the alternatives that the
// state of the story allows, made at the very place in the text where the alternatives part. No two
// series of choices tell the same text: -ln P(text) is exactly the sum of ln(n) over its choices,
// and no model's expected loss is lower. dev/test/test_stories.c proves it by reading: given a text
// as target, tell() stops at the first byte that differs, and a search over the choices finds all
// derivations of the text. (In that way it reads any text, and finds the mistakes in it.)
//
// Rules of the grammar: nothing is chosen before the text shows it; alternatives part with their
// first word where English lets them; he and she stand only where one person can be meant; the last
// sentence is known by its words, so that there is no choice to stop.
//
// It refuses: other probabilities than 1/n, recursive plots, and long lists of rare words.
#include "options.h"
#include <assert.h>
#include <setjmp.h>

// ------------------------------------------------------------------------------------------------
// Words

#define LENGTH(table) ((int)(sizeof(table) / sizeof((table)[0])))

// Characters: girls, boys, grown-ups.
static const char* const NAMES[] = {
    "Anna", "Clara", "Ella", "Emma", "Lily", "Lucy", "Mia", "Nora", "Rosa", "Ruby", "Sara", "Zoe",
    "Ben", "Finn", "Hugo", "Jack", "Leo", "Max", "Noah", "Oscar", "Paul", "Sam", "Theo", "Tom",
    "Grandma", "Aunt Rose", "Grandpa", "Uncle Bill"};

// Sets of names: bit i stands for the table's entry i, as in every set below.
enum { GIRLS = 0xfff, BOYS = 0xfff000, GROWN_UPS = 0xf000000, FEMALE = 0x3000fff };

// What can stand before a name, and whose names fit: four relations, then two kinds of child.
enum { ANYBODY, RELATIONS = 0xf, KINDS = 0x30 };
static const struct { const char* word; uint32_t names; } TITLES[] = {
    {"friend", GIRLS | BOYS}, {"cousin", GIRLS | BOYS}, {"sister", GIRLS}, {"brother", BOYS},
    {"girl named", GIRLS}, {"boy named", BOYS}};

// The words that tell things apart, with their article.
static const char* const ADJECTIVES[] = {"a red", "a blue", "a green", "a yellow", "an orange",
    "a purple", "a white", "a black", "an old", "a new", "a tiny", "a big"};

// Things: why somebody would want one, and what everybody does with it at the end.
static const struct { const char *noun, *need, *use; } THINGS[] = {
    {"kite", "wanted to play in the wind", "flew the kite"},
    {"ball", "wanted to play a game", "played with the ball"},
    {"drum", "wanted to make some noise", "beat the drum and sang"},
    {"flute", "wanted to make music", "danced to the sound of the flute"},
    {"bell", "wanted to call the others", "rang the bell and laughed"},
    {"book", "wanted to read a story", "read the book together"},
    {"lamp", "was afraid of the dark", "told stories by the light of the lamp"},
    {"blanket", "was tired", "sat on the blanket and looked at the clouds"},
    {"scarf", "was cold", "dressed up with the scarf"},
    {"hat", "did not like the bright sun", "threw the hat into the air"},
    {"umbrella", "felt a drop of rain", "danced under the umbrella"},
    {"cup", "was thirsty", "drank cool water from the cup"},
    {"rope", "wanted to build a swing", "jumped over the rope"},
    {"map", "did not know the way", "looked for treasure with the map"},
    {"doll", "wanted to put on a show", "built a house for the doll"},
    {"puzzle", "was bored", "worked on the puzzle"},
    {"basket", "was hungry", "ate the cookies in the basket"},
    {"net", "saw a butterfly", "chased butterflies with the net"},
    {"shovel", "wanted to dig a hole", "dug a tunnel with the shovel"},
    {"brush", "wanted to paint", "painted a picture with the brush"},
    {"camera", "saw a rainbow", "took funny pictures with the camera"},
    {"whistle", "wanted to start a race", "blew the whistle and ran races"},
    {"robot", "felt lonely", "marched behind the robot"},
    {"telescope", "wanted to watch the birds", "looked at the sky through the telescope"}};

// The weather in the opening, and what is seen of it; then two seasons.
enum { WEATHERS = 0xff, SEASONS = 0x300 };
static const struct { const char *word, *detail; } SKIES[] = {
    {"sunny", "The sun was high in the sky"}, {"windy", "Leaves danced in the wind"},
    {"cloudy", "Gray clouds hid the sun"}, {"warm", "The air smelled of honey"},
    {"cool", "The air was fresh and clean"}, {"quiet", "Even the birds were silent"},
    {"bright", "The whole sky was blue"}, {"misty", "A little mist lay over the road"},
    {"spring", "Birds were singing everywhere"}, {"summer", "The grass was soft and green"}};

// Settings: where one goes and is; where things lie and people hide; what children do there; who
// carries things off; what can be gathered, and how. Verbs take -ing and -ed as they are.
static const struct {
    const char *to, *at, *places[6], *pastimes[3][2], *animals[3], *gather, *goods[3];
} SETTINGS[] = {
    {"to the park", "in the park", {"under the bench", "behind the fountain", "behind the slide",
        "under the bridge", "behind the hedge", "in the playhouse"}, {{"feed", "the ducks"},
        {"climb", "a tree"}, {"smell", "the flowers"}}, {"crow", "puppy", "goose"},
        "gather", {"acorns", "daisies", "feathers"}},
    {"to the farm", "on the farm", {"in the barn", "behind the gate", "behind the well",
        "in the cart", "behind the haystack", "under the ladder"}, {{"feed", "the hens"},
        {"comb", "the pony"}, {"milk", "the cow"}}, {"goat", "piglet", "donkey"},
        "pick", {"apples", "carrots", "pears"}},
    {"to the beach", "at the beach", {"in the boat", "behind the rocks", "in the cave",
        "under the pier", "in the tent", "behind the lighthouse"}, {{"jump", "into the sea"},
        {"watch", "the waves"}, {"build", "a sandcastle"}}, {"gull", "crab", "seal"},
        "collect", {"shells", "pebbles", "sticks"}},
    {"to the forest", "in the forest", {"in the hut", "behind the waterfall", "under the pine",
        "in the cave", "behind the bushes", "under the bridge"}, {{"listen", "to the birds"},
        {"climb", "a tree"}, {"watch", "the deer"}}, {"fox", "squirrel", "bear"},
        "gather", {"nuts", "pinecones", "mushrooms"}},
    {"to the market", "at the market", {"in the bakery", "behind the fountain", "in the wagon",
        "under the arch", "behind the statue", "under the stairs"}, {{"listen", "to the band"},
        {"watch", "a juggler"}, {"smell", "the bread"}}, {"monkey", "dog", "pigeon"},
        "pick", {"plums", "candles", "buttons"}},
    {"to school", "at school", {"under the desk", "in the closet", "behind the door",
        "behind the piano", "under the table", "in the library"}, {{"sing", "a song"},
        {"water", "the plants"}, {"clean", "the board"}}, {"parrot", "cat", "rabbit"},
        "paint", {"masks", "flags", "stars"}},
    {"to the castle", "at the castle", {"in the tower", "behind the throne", "under the stairs",
        "in the cellar", "behind the curtain", "in the stable"}, {{"feed", "the horses"},
        {"watch", "the knights"}, {"look", "at the paintings"}}, {"raven", "peacock", "cat"},
        "collect", {"coins", "keys", "beads"}}};

// For whom children gather something.
static const char* const RECEIVERS[] = {"mother", "father", "teacher", "neighbor"};

static const char* const NUMBERS[] = {"zero", "one", "two", "three", "four", "five", "six",
    "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
    "sixteen", "seventeen", "eighteen", "nineteen", "twenty"};

// The sorts of words, their forms (see say) and how many there are. A story can have several of the
// first five, each in a slot, and one of each of the others.
enum { PERSON, THING, ADJECTIVE, PLACE, NUMBER,
    TITLE, SKY, SETTING, PASTIME, ANIMAL, GOODS, RECEIVER, N_SORTS };
static const struct { const char* forms; int n; } SORTS[N_SORTS] = {
    {"nsSmhe", LENGTH(NAMES)}, {"ozu", LENGTH(THINGS)}, {"aj", LENGTH(ADJECTIVES)}, {"pt", 6},
    {"d", LENGTH(NUMBERS)}, {"rc", LENGTH(TITLES)}, {"yYi", LENGTH(SKIES)},
    {"wWg", LENGTH(SETTINGS)}, {"vx", 3}, {"b", 3}, {"k", 3}, {"f", LENGTH(RECEIVERS)}};

// ------------------------------------------------------------------------------------------------
// A story: its text, the choices that made it, and the state of its world

// Slots, of people or things or places. Person A is the hero, person B is who came along.
enum { A, B, C, D, NOBODY = -1 };

// Bounds with room to spare: the test prints how much of them the longest stories use.
enum { MAX_TEXT = 2048, MAX_CHOICES = 128, MAX_MARKS = 16, MAX_SLOTS = 6 };

typedef struct {
    int offset;     // length of the text when it was made: the first byte that it decides
    int picked, n;  // alternative `picked` out of n
} Choice;

// A word that the state decides. A question can end just before it.
typedef struct {
    int offset;  // of the space before the word
    char form;   // see say
    int value;
} Mark;

typedef struct {
    char text[MAX_TEXT];
    int length;
    Choice choices[MAX_CHOICES];
    int n_choices;
    Mark marks[MAX_MARKS];
    int n_marks, open_mark;  // open_mark: where a brace has been opened, or -1
    uint64_t random;         // state of the random numbers

    // Reading: the first n_given choices are as they stand, and the text must agree with target.
    const char* target;
    int target_length, n_given;
    jmp_buf mismatch;

    // The world. Slots are filled in the order in which the story meets what is in them.
    int value[N_SORTS][MAX_SLOTS];  // a word's index in its table, or the number
    int n[N_SORTS];                 // how many of a sort it has met
    uint32_t left[N_SORTS];         // the words not used yet, a set
    int hideout[MAX_SLOTS];         // of each person: the slot of a place
    int holder[MAX_SLOTS];          // of each thing: who has it, or NOBODY
    int spot[MAX_SLOTS];            // of each thing that nobody has: the slot of a place
} Story;

// One of 0 .. n-1, each with probability 1/n (to within 2^-32: n need not divide the 2^32 values
// that are mapped to them).
static int random_below(uint64_t* state, int n) {
    return (int)((splitmix64((*state)++) >> 32) * (uint64_t)n >> 32);
}

// The only source of chance in a story: one of n alternatives, all equally likely.
static int choose(Story* s, int n) {
    assert(n > 0 && s->n_choices < MAX_CHOICES);
    if (n == 1) return 0;
    Choice* choice = &s->choices[s->n_choices++];
    if (s->n_choices > s->n_given) choice->picked = s->target ? 0 : random_below(&s->random, n);
    choice->offset = s->length;
    choice->n = n;
    return choice->picked;
}

static int count(uint32_t set) { return __builtin_popcount(set); }

// The element that has n smaller ones in its set.
static int element(uint32_t set, int n) {
    for (; n > 0; n--) set &= set - 1;
    return __builtin_ctz(set);
}

static int choose_from(Story* s, uint32_t set) { return element(set, choose(s, count(set))); }

// -ln P(text), where the text is the whole story.
static double story_nats(const Story* s) {
    double nats = 0;
    for (int i = 0; i < s->n_choices; i++) nats += log(s->choices[i].n);
    return nats;
}

// ------------------------------------------------------------------------------------------------
// Text: say() and its notation
//
//     [a|b||c d]  one of the alternatives, each equally likely; they nest
//     %nA  %n0    a word: the letter is its form; what it is about lies in slot A, B, ... or in the
//                 slot that is argument 0, 1, ... of say; words that a story has one of need none
//     %+n         a word for somebody or something new, chosen here, into the next free slot
//     { %nA}      the state decides this word: see Mark
//
//     people      n Lily             s she           S She        m her (him)     h her (his)
//                 e Grandma, when new
//     things      o kite             z wanted to play (a need)    u flew the kite (a use)
//                 a a red            j red
//     places      p under the bench  t the bench
//     numbers     d three
//     one each    r sister           c girl named                 y sunny         Y spring
//                 i The sun was high w to the park                W in the park   v feed
//                 x the ducks        b crow      g gather         k acorns        f mother

// Adds n bytes to the text. When reading, only as many as the target agrees with; if that is not
// all of them, these choices do not tell the target, and the jump ends tell().
static void put(Story* s, const char* text, size_t n) {
    assert((size_t)s->length + n < MAX_TEXT);
    size_t same = n;
    if (s->target) {
        const char* target = s->target + s->length;
        size_t left = (size_t)(s->target_length - s->length);
        for (same = 0; same < n && same < left && text[same] == target[same];) same++;
    }
    memcpy(s->text + s->length, text, same);
    s->length += (int)same;
    if (same < n) longjmp(s->mismatch, 1);
}

// Every form belongs to one sort.
static int sort_of(char form) {
    int sort = 0;
    while (strchr(SORTS[sort].forms, form) == NULL) sort++;
    return sort;
}

// The words of a form, for an index into its sort's table.
static const char* words_of(const Story* s, char form, int value) {
    int setting = s->value[SETTING][0], she = FEMALE >> value & 1;
    switch (form) {
    case 's': return she ? "she" : "he";
    case 'S': return she ? "She" : "He";
    case 'm': return she ? "her" : "him";
    case 'h': return she ? "her" : "his";
    case 'd': return NUMBERS[value];
    case 'o': return THINGS[value].noun;
    case 'z': return THINGS[value].need;
    case 'u': return THINGS[value].use;
    case 'a': return ADJECTIVES[value];
    case 'j': return strchr(ADJECTIVES[value], ' ') + 1;
    case 'r': case 'c': return TITLES[value].word;
    case 'y': case 'Y': return SKIES[value].word;
    case 'i': return SKIES[value].detail;
    case 'f': return RECEIVERS[value];
    case 'w': return SETTINGS[value].to;
    case 'W': return SETTINGS[value].at;
    case 'g': return SETTINGS[value].gather;
    case 'p': return SETTINGS[setting].places[value];
    case 't': return strstr(SETTINGS[setting].places[value], "the ");
    case 'v': return SETTINGS[setting].pastimes[value][0];
    case 'x': return SETTINGS[setting].pastimes[value][1];
    case 'b': return SETTINGS[setting].animals[value];
    case 'k': return SETTINGS[setting].goods[value];
    default: return NAMES[value];
    }
}

// Chooses a word among those that fit the form and are left, so that no word is used for two.
// Returns its slot.
static int introduce(Story* s, char form) {
    int sort = sort_of(form), slot = sort <= NUMBER ? s->n[sort]++ : 0;
    uint32_t fitting = s->left[sort];
    if (form == 'n') fitting &= TITLES[s->value[TITLE][0]].names;
    if (form == 'e') fitting &= GROWN_UPS;
    if (form == 'r') fitting &= RELATIONS;
    if (form == 'c') fitting &= KINDS;
    if (form == 'y') fitting &= WEATHERS;
    if (form == 'Y') fitting &= SEASONS;
    if (form == 'd') fitting &= 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5;
    s->value[sort][slot] = choose_from(s, fitting);
    s->left[sort] &= ~(1u << s->value[sort][slot]);
    if (sort == PERSON) s->value[TITLE][0] = ANYBODY;  // a title is for one name
    return slot;
}

// Writes the word at f, just behind its '%'. Returns what follows it.
static const char* put_word(Story* s, const char* f, const int* slots) {
    int is_new = *f == '+', slot = 0;
    f += is_new;
    char form = *f++;
    int sort = sort_of(form);
    if (is_new) slot = introduce(s, form);
    else if (sort <= NUMBER) slot = isdigit((unsigned char)*f) ? slots[*f++ - '0'] : *f++ - 'A';
    int value = s->value[sort][slot];
    if (s->open_mark >= 0) {
        assert(s->n_marks < MAX_MARKS);
        Mark mark = {s->open_mark, form, value};
        s->marks[s->n_marks++] = mark;
        s->open_mark = -1;
    }
    const char* words = words_of(s, form, value);
    put(s, words, strlen(words));
    return f;
}

static const char* put_format(Story* s, const char* f, const int* slots);

// Writes one of the alternatives at f, just behind their '['. Returns what follows their ']'. To
// find their ends, the brackets of alternatives within are counted.
static const char* put_alternative(Story* s, const char* f, const int* slots) {
    const char* alternatives[8] = {f};
    int n = 1, depth = 0;
    for (; depth > 0 || *f != ']'; f++) {
        depth += (*f == '[') - (*f == ']');
        if (depth == 0 && *f == '|') alternatives[n++] = f + 1;
    }
    put_format(s, alternatives[choose(s, n)], slots);
    return f + 1;
}

// Writes everything up to the end of the format or of the alternative. Returns where that is.
static const char* put_format(Story* s, const char* f, const int* slots) {
    while (*f && *f != '|' && *f != ']') {
        size_t plain = strcspn(f, "[|]{}%");
        put(s, f, plain);
        f += plain;
        char c = *f;
        if (c == '[') f = put_alternative(s, f + 1, slots);
        if (c == '%') f = put_word(s, f + 1, slots);
        if (c == '{') s->open_mark = s->length;
        if (c == '{' || c == '}') f++;
    }
    return f;
}

// Writes one sentence, a few, or a part of one. Sentences begin with the space that parts them from
// the last one. The arguments are slots, as many as the digits name; no text has other digits.
static void say(Story* s, const char* format, ...) {
    int slots[MAX_SLOTS] = {0}, n = 0;
    for (const char* f = format; *f; f++) {
        if (isdigit((unsigned char)*f) && *f - '0' >= n) n = *f - '0' + 1;
    }
    va_list args;
    va_start(args, format);
    for (int i = 0; i < n; i++) slots[i] = va_arg(args, int);
    va_end(args);
    put_format(s, format, slots);
}

// ------------------------------------------------------------------------------------------------
// The world: who has what

// The things that somebody has, as a set; or NOBODY, which are those that lie about.
static uint32_t things_of(const Story* s, int who) {
    uint32_t set = 0;
    for (int thing = 0; thing < s->n[THING]; thing++) {
        if (s->holder[thing] == who) set |= 1u << thing;
    }
    return set;
}

// The one thing that somebody has, in a story of trade.
static int thing_of(const Story* s, int who) { return element(things_of(s, who), 0); }

static void swap_things(Story* s, int who, int other) {
    int mine = thing_of(s, who), theirs = thing_of(s, other);
    s->holder[mine] = other;
    s->holder[theirs] = who;
}

// Somebody leaves a thing in the place that the story has met last.
static void lay_down(Story* s, int thing) {
    s->holder[thing] = NOBODY;
    s->spot[thing] = s->n[PLACE] - 1;
}

// "In the end, the red kite was with Tom, the old map was with Mia, and the drum was in the barn."
static void sum_up(Story* s) {
    say(s, " [In the end|At the end of the day],");
    for (int thing = 0; thing < s->n[THING]; thing++) {
        int who = s->holder[thing];
        if (thing > 0) say(s, thing + 1 < s->n[THING] ? "," : ", and");
        say(s, " the %j0 %o0 was", thing);
        if (who != NOBODY) say(s, " with{ %n0}", who);
        else say(s, "{ %p0}", s->spot[thing]);
    }
    say(s, ".");
}

// "And who had the kite now? It was Tom."
static void quiz(Story* s) {
    say(s, " And");
    int thing = choose(s, s->n[THING]), who = s->holder[thing];
    if (who != NOBODY) say(s, " who had the %o0 now? It was{ %n1}.", thing, who);
    else say(s, " where was the %o0 now? It was{ %p1}.", thing, s->spot[thing]);
}

// ------------------------------------------------------------------------------------------------
// Beginning and end of every story

#define DAY "%+y [morning|afternoon|day]"

// Who goes where, and when; then perhaps what the sky is like.
static void opening(Story* s) {
    say(s,
        "[One " DAY ", %+n and %hA %+r %+n [went|walked|hurried] %+w|"
        "It was [a " DAY "|the first day of %+Y], and %+n was %+W with %hA %+r %+n|"
        "Once there was a [kind|clever|cheerful|brave|shy|curious|gentle|lively] %+c %+n who loved "
        "[stories|animals|riddles|surprises]. One " DAY ", %sA went %+w with %hA %+r %+n|"
        "%+n and %hA %+r %+n often played %+W. One " DAY ", they went there [again|once more]].");
    if (choose(s, 2)) say(s, " %i.");
}

// What they do with one of the things, if there are any, and how the day ends.
static void ending(Story* s) {
    if (s->n[THING] > 0) {
        say(s, s->n[PERSON] > 2 ? " Then they all" : " Then they");
        say(s, " %u0 [until [dinner|the sun went down]|for [hours|a long time]].",
            choose(s, s->n[THING]));
    }
    say(s,
        " [It had been a [wonderful|lovely|perfect|happy] day|"
        "They [went home [tired|hungry|late] but happy|promised to [come back|meet again] soon|"
        "could not wait to go %w again]|"
        "[%nA|%nB] [smiled|sang|talked] all the way home|"
        "That night, [%nA|%nB] [slept very well|dreamed about it all]].");
}

// ------------------------------------------------------------------------------------------------
// Plot 1: a thing is put down, carried off, missed and found

// Thing A is moved while its owner is away, by the friend or by one or two animals. Returns whether
// it was the friend.
static int carry_off(Story* s, int friend_stays) {
    int friend_did = friend_stays && choose(s, 2);
    if (friend_did) {
        say(s, " %nB [borrowed|played with] the %oA and left it %+p.");
    } else {
        say(s, " a %+b [took|grabbed|stole] the %oA and [dropped|left] it %+p.");
        if (choose(s, 2)) say(s, " [Soon|Then] a %+b found it there and carried it to %+t.");
    }
    lay_down(s, A);
    return friend_did;
}

// They look for thing A in a wrong place first, where thing B may be.
static void search(Story* s) {
    say(s, " First they looked");
    if (s->holder[B] == NOBODY && choose(s, 2)) {
        say(s, " %p0, but there was only the{ %oB}.", s->spot[B]);
    } else {
        say(s, " %+p, but [it was not there|there was nothing].");
    }
    say(s, " Then they looked{ %p0}, and there was the %oA!", s->spot[A]);
}

// The owner asks the friend, who may know where the thing is.
static void ask_friend(Story* s, int friend_stays, int friend_did) {
    say(s, " \"[Where is|Who took|Have you seen] my %oA?\" %sA asked. \"I");
    if (friend_did) {
        say(s, " left it{ %p0},\" said %nB. \"I am [so|very] sorry.\"", s->spot[A]);
    } else if (friend_stays && choose(s, 2)) {
        say(s, " saw a %b with it,\" said %nB. \"It is{ %p0} now.\"", s->spot[A]);
    } else {
        say(s, " do not know,\" said %nB. \"Let us look for it!\"");
        search(s);
        return;
    }
    say(s, " %nA [ran|hurried] to %t0 and found the %oA there.", s->spot[A]);
}

// Lily leaves her kite, thing A, in place A. It is carried off; she misses it, asks Tom, and finds
// it. Either Tom stays, or he comes along, leaves thing B, and cannot know what has happened.
static void lost_and_found(Story* s) {
    say(s, " %nA had [%+a %+o with %mA|brought %+a %+o], and %nB had %+a %+o.");
    s->holder[B] = B;
    say(s,
        " %nA [wanted to %+v %x, so %sA [put|left] the %oA %+p|"
        "[put|left] the %oA %+p and went to %+v %x].");
    int friend_stays = choose(s, 2);
    if (!friend_stays) {
        say(s, " %nB left the %oB %+p and [went|came] along.");
        lay_down(s, B);
    }
    say(s, friend_stays ? " While %sA was %ving %x," : " While they were %ving %x,");
    int friend_did = carry_off(s, friend_stays);
    say(s, friend_stays ? " When %nA came back, %sA" : " When they came back, %nA");
    say(s, " looked %pA, but the %oA was [gone|not there].");
    if (choose(s, 2)) say(s, " %SA was [very sad|worried|close to tears].");
    ask_friend(s, friend_stays, friend_did);
    if (friend_stays) {
        say(s,
            " [\"[Thank you, %nB|Next time I will take it with me],\" said %nA|"
            "%nA [jumped for joy|was happy again|gave %nB a big hug]].");
    } else {
        say(s, " The %oB was still{ %p0}, where %nB had left it.", s->spot[B]);
    }
}

// ------------------------------------------------------------------------------------------------
// Plot 2: a trade, which may need another one first

// The hero needs the seller's thing. The seller takes the hero's own for it, or insists on that of
// the third, which the hero must get first. Things have the slots of their first owners.
static void trade(Story* s) {
    say(s, " Soon they met their friend %+n.");
    say(s, " %nA had %+a %+o, %nB had %+a %+o, and %nC had %+a %+o. %nA");
    for (int who = A; who <= C; who++) s->holder[who] = who;
    int seller = choose(s, 2) ? B : C, third = B + C - seller;
    say(s, " %z0, so %sA [wished for|needed] the %o0.", seller);
    say(s, " \"%n0, will you [trade|swap] the %o0 for my %oA?\" %sA asked. \"", seller);
    if (choose(s, 2)) {
        say(s, "[Yes, gladly|Of course],\" said %n0, and they traded.", seller);
    } else {
        say(s, "No, but I [need|want] the %o0,\" said %n1.", third, seller);
        say(s, " So %nA [went|ran] to{ %n0} and got the %o0 for the %oA.", third);
        say(s, " Then %nA gave the %o0 to{ %n1} for the %o1.", third, seller);
        swap_things(s, A, third);
    }
    swap_things(s, A, seller);
    if (choose(s, 2)) {
        say(s, " [Later|After that], %nB and %nC traded, too.");
        swap_things(s, B, C);
    }
    say(s, " Now %nA had the{ %o0}, %nB had the{ %o1}, and %nC had the{ %o2}.", thing_of(s, A),
        thing_of(s, B), thing_of(s, C));
    say(s, " [Everybody was happy with the trade|It was a fair trade|All three of them smiled].");
}

// ------------------------------------------------------------------------------------------------
// Plot 3: three people need things, fetch or get them, and put them down

// Somebody needs a thing, and gets it from the one who has it or from where it lies.
static void need(Story* s, int who, int thing) {
    int holder = s->holder[thing], spot = s->spot[thing];
    say(s, " %z0, so", thing);
    if (holder == NOBODY) {
        say(s, " %s0 [ran|went|walked] to{ %t1} and picked up the %o2.", who, spot, thing);
    } else {
        say(s, "[{ %n0} gave %m1 the %o2| %s1 asked{ %n0} for the %o2 and got it].", holder, who,
            thing);
    }
    s->holder[thing] = who;
}

// Somebody needs a thing or puts one down, but not the one of the turn before. Returns which.
static int take_turn(Story* s, int last) {
    int who = choose(s, 3), thing;
    uint32_t others = last < 0 ? 7u : 7u & ~(1u << last);
    uint32_t own = others & things_of(s, who), needed = others & ~own;
    say(s, " %n0", who);
    if (own && (!needed || choose(s, 2))) {
        say(s, " put the");
        thing = choose_from(s, own);
        say(s, " %o0 %+p [and ate a sandwich|to rest a little|and stretched].", thing);
        lay_down(s, thing);
    } else {
        thing = choose_from(s, needed);
        need(s, who, thing);
    }
    return thing;
}

// Three things, which three people have or which lie about, change hands and places a few times.
static void sharing(Story* s) {
    say(s, " [Their friend %+n|%+e] was there, too.");
    int is_lying = choose(s, 2);
    if (is_lying) say(s, " There was %+a %+o %+p, %+a %+o %+p, and %+a %+o %+p.");
    else say(s, " %nA had %+a %+o, %nB had %+a %+o, and %nC had %+a %+o.");
    for (int i = 0; i < 3; i++) {
        s->holder[i] = is_lying ? NOBODY : i;
        s->spot[i] = i;
    }
    for (int turn = 0, last = -1; turn < 3 || (turn == 3 && choose(s, 2)); turn++) {
        if (turn == 1) say(s, " [Soon|A little later,]");
        if (turn == 2) say(s, " [Then|After a while,]");
        if (turn == 3) say(s, " [Later,|Finally,]");
        last = take_turn(s, last);
    }
    if (choose(s, 2)) sum_up(s);
    else quiz(s);
    say(s, " [Sharing made the day even better|It was fun to share|Nobody had to go without].");
}

// ------------------------------------------------------------------------------------------------
// Plot 4: two children count what they gather

enum { STEP = C, TOTAL = D };  // slots of numbers that belong to nobody
enum { FIND, GIVE, LOSE };     // what can happen

// "Tom gave two of his apples to Mia. Tom now had four." Nobody gives or loses the last one. From
// five each at most and by three a step, the total stays below 20.
static void count_step(Story* s) {
    int who = choose(s, 2), other = 1 - who, *number = s->value[NUMBER], spare = number[who] - 1;
    say(s, " %n0", who);
    int what = spare > 0 ? choose(s, 3) : FIND;
    say(s, what == FIND ? " %ged" : what == GIVE ? " gave" : " lost");
    number[STEP] = 1 + choose(s, what == FIND || spare > 3 ? 3 : spare);
    number[who] += what == FIND ? number[STEP] : -number[STEP];
    if (what == GIVE) number[other] += number[STEP];
    if (what == FIND) say(s, " %dC more.");
    if (what == GIVE) say(s, " %dC of %h0 %k to %n1.", who, other);
    if (what == LOSE) say(s, " %dC of %h0 %k[| to a cheeky %+b].", who);
    if (choose(s, 2)) say(s, what == GIVE ? " %n0 now had{ %d0}." : " %S0 now had{ %d0}.", who);
}

// They gather goods for somebody, count them, and give them away.
static void gathering(Story* s) {
    say(s, " They [wanted|had come] to %g %+k for their %+f.");
    say(s, " %nA %ged %+d %k, and %nB %ged %+d.");
    for (int step = 0; step < 2 || (step == 2 && choose(s, 2)); step++) {
        if (step == 0) say(s, " [Then|Soon]");
        if (step == 1) say(s, " [After a while,|A little later,]");
        if (step == 2) say(s, " [Later,|Finally,]");
        count_step(s);
    }
    s->value[NUMBER][TOTAL] = s->value[NUMBER][A] + s->value[NUMBER][B];
    if (choose(s, 2)) {
        say(s, " In the end, %nA had{ %dA} and %nB had{ %dB}, which made{ %dD} %k in all.");
    } else {
        say(s, " \"How many %k do you have?\" asked");
        int who = choose(s, 2);
        say(s, " %n0. \"I have{ %d1},\" said %n1. \"Then we have{ %dD} in all,\" said %n0.", who,
            1 - who);
    }
    say(s, " They [gave|brought] the %k to their %f, who was [delighted|very pleased|so proud].");
}

// ------------------------------------------------------------------------------------------------
// Plot 5: hide-and-seek

// Three hide; one of them may change places. Returns the place that is empty then, or -1.
static int hide(Story* s) {
    say(s, " %nB hid %+p, %nC hid %+p, and %nD hid %+p.");
    for (int who = B; who <= D; who++) s->hideout[who] = who - B;
    if (choose(s, 2)) return -1;
    say(s, " At the last moment,");
    int who = B + choose(s, 3), empty = s->hideout[who];
    say(s, " %n0 [ran|crept|tiptoed] to %+t instead.", who);
    s->hideout[who] = s->n[PLACE] - 1;
    return empty;
}

// Looks in a place where somebody hides, or in the empty one. Returns who is found, or NOBODY.
static int seek(Story* s, uint32_t hidden, int empty) {
    uint32_t places = 0;
    for (int who = B; who <= D; who++) {
        if (hidden >> who & 1) places |= 1u << s->hideout[who];
    }
    int hears = choose(s, 2);
    say(s, hears ? " heard a [giggle|sneeze]" : " looked");
    int place = choose_from(s, places | (empty >= 0 && !hears ? 1u << empty : 0));
    int found = NOBODY;
    for (int who = B; who <= D; who++) {
        if ((hidden >> who & 1) && s->hideout[who] == place) found = who;
    }
    if (found == NOBODY) say(s, " %p0, but nobody was there.", place);
    else say(s, " %p0 and found{ %n1}.", place, found);
    return found;
}

// The hero seeks the three others. The last one calls, or is betrayed by one who has been found.
static void hide_and_seek(Story* s) {
    say(s, " \"Let us play hide-and-seek,\" said %nB, and their friends %+n and %+n joined in.");
    say(s, " %nA [closed|covered] %hA eyes and counted to [ten|twenty|fifty].");
    int empty = hide(s);
    say(s, " \"[Ready or not, here I come|I am coming now]!\" [called|shouted] %nA.");
    uint32_t hidden = 1u << B | 1u << C | 1u << D;
    for (int look = 0; __builtin_popcount(hidden) > 1; look++) {
        say(s, look == 0 ? " First %sA" : look == 1 ? " Then %nA" : " After that, %nA");
        int found = seek(s, hidden, empty);
        if (found == NOBODY) empty = -1;
        else hidden &= ~(1u << found);
    }
    int last = __builtin_ctz(hidden), place = s->hideout[last];
    say(s, " Only{ %n0} was [still hidden|missing].", last);
    say(s,
        " \"[I give up,\" said %nA. \"I am{ %p0}!\" [called|laughed] %n1|"
        "Where is %n1?\" asked %nA. \"Look{ %p0},\" whispered %n2, and there was %n1].",
        place, last, last == B ? C : B);
    say(s,
        " %n0 had [found the best place|won the game], so [everybody cheered|the others clapped].",
        last);
}

// ------------------------------------------------------------------------------------------------
// A whole story

// Tells a new story, or with a target one more reading of it. What is random goes on from before.
static void tell(Story* s) {
    s->length = s->n_choices = s->n_marks = 0;
    s->open_mark = -1;
    for (int sort = 0; sort < N_SORTS; sort++) {
        s->n[sort] = s->value[sort][0] = 0;
        s->left[sort] = (1u << SORTS[sort].n) - 1;
    }
    opening(s);
    switch (choose(s, 5)) {
    case 0: lost_and_found(s); break;
    case 1: trade(s); break;
    case 2: sharing(s); break;
    case 3: gathering(s); break;
    case 4: hide_and_seek(s); break;
    }
    ending(s);
}

// ------------------------------------------------------------------------------------------------
// Questions: the beginning of a story, cut before a word that its state decides

enum { N_ENDINGS = 4 };

// The forms of the words that answer who, what, where and how many.
static const char* const ANSWERS[] = {"n", "o", "pt", "d"};

// Three wrong answers. Names, things and places of the same story come first. Numbers are near the
// right one, whether the story has mentioned them or not: the right one often is a sum, and would
// be known by its being new.
static void choose_wrong(const Story* s, const Mark* mark, uint64_t* random, int wrong[3]) {
    int sort = sort_of(mark->form);
    uint32_t first = 0, all = (1u << SORTS[sort].n) - 1, taken = 1u << mark->value;
    if (sort == NUMBER) {
        for (int n = 1; n < SORTS[sort].n; n++) first |= (abs(n - mark->value) <= 3) << n;
    } else {
        for (int slot = 0; slot < s->n[sort]; slot++) first |= 1u << s->value[sort][slot];
    }
    for (int i = 0; i < N_ENDINGS - 1; i++) {
        uint32_t set = first & ~taken ? first & ~taken : all & ~taken;
        wrong[i] = element(set, random_below(random, count(set)));
        taken |= 1u << wrong[i];
    }
}

// One line: label TAB context TAB four endings. Labels and kinds of questions take turns, so that
// they are equally frequent; the mark is one of that kind in the next story that has any.
static void write_question(FILE* file, Story* s, int index, uint64_t* random) {
    const char* forms = ANSWERS[index / N_ENDINGS % LENGTH(ANSWERS)];
    int right = index % N_ENDINGS, n_fitting = 0, wrong[N_ENDINGS - 1];
    Mark fitting[MAX_MARKS];
    while (n_fitting == 0) {
        tell(s);
        for (int i = 0; i < s->n_marks; i++) {
            if (strchr(forms, s->marks[i].form)) fitting[n_fitting++] = s->marks[i];
        }
    }
    Mark mark = fitting[random_below(random, n_fitting)];
    choose_wrong(s, &mark, random, wrong);
    fprintf(file, "%d\t%.*s", right, mark.offset, s->text);
    for (int ending = 0, i = 0; ending < N_ENDINGS; ending++) {
        int value = ending == right ? mark.value : wrong[i++];
        fprintf(file, "\t %s", words_of(s, mark.form, value));
    }
    fprintf(file, "\n");
}

// ------------------------------------------------------------------------------------------------
// Files

typedef struct {
    const char* out;
    int64_t seed, val_stories, questions;
    double train_mb;
    int help;
} StoriesOptions;

#define ROW(field, letter, kind, value, low, high, help) \
    {#field, letter, kind, offsetof(StoriesOptions, field), value, low, high, help}
static const Option OPTIONS[] = {
    ROW(out, 'o', TEXT, "", 0, 0, "folder for train.txt, val.txt, val.floor and questions.tsv"),
    ROW(seed, 0, COUNT, "1", 0, 1e15, "other seeds, other stories"),
    ROW(train_mb, 0, REAL, "20", 0, 1e6, "size of train.txt, in 10^6 bytes"),
    ROW(val_stories, 0, COUNT, "2000", 1, 1e7, "stories in val.txt"),
    ROW(questions, 0, COUNT, "1000", 0, 1e6, "lines in questions.tsv"),
    ROW(help, 'h', FLAG, "0", 0, 0, "print this and exit"),
};

// A file has ".part" behind its name until it is complete, so that one with its name is whole.
static FILE* file_create(const char* dir, const char* name) {
    char* part = xprintf("%s/%s.part", dir, name);
    FILE* file = fopen(part, "wb");
    if (file == NULL) die_errno(EXIT_RESOURCES, part, "need a file to write to");
    free(part);
    return file;
}

static void file_complete(FILE* file, const char* dir, const char* name) {
    char *part = xprintf("%s/%s.part", dir, name), *path = xprintf("%s/%s", dir, name);
    int failed = fflush(file) != 0 || ferror(file);
    if (fclose(file) != 0 || failed) die_errno(EXIT_RESOURCES, part, "need room on the disk");
    if (rename(part, path) != 0) die_errno(EXIT_RESOURCES, path, "need to rename its .part");
    free(part);
    free(path);
}

// Each file has random numbers of its own, so that its content depends on nothing but the seed.
enum { TRAIN, VAL, CONTEXTS, ENDINGS };

static uint64_t random_start(const StoriesOptions* o, int stream) {
    return splitmix64(splitmix64((uint64_t)o->seed) + (uint64_t)stream);
}

// One row for all choices made at one offset, so that offsets ascend strictly.
static void write_floor(FILE* file, const Story* s, double start) {
    double nats = 0;
    for (int i = 0; i < s->n_choices; i++) {
        const Choice* choice = &s->choices[i];
        nats += log(choice->n);
        if (i + 1 < s->n_choices && choice[1].offset == choice->offset) continue;
        fprintf(file, "%.0f\t%.9g\n", start + choice->offset, nats);
        nats = 0;
    }
}

typedef struct {
    double stories, bytes, words, nats;
    double probability;  // the sum of P(text)
} Totals;

// Writes stories with a blank line between them until there are n of them or so many bytes, and
// their floor if it is wanted.
static Totals write_stories(Story* s, FILE* text, FILE* floor_rows, double n, double n_bytes) {
    Totals sum = {0, 0, 0, 0, 0};
    while (sum.stories < n && sum.bytes < n_bytes) {
        tell(s);
        if (sum.stories++ > 0) sum.bytes += fwrite("\n\n", 1, 2, text);
        if (floor_rows) write_floor(floor_rows, s, sum.bytes);
        sum.bytes += fwrite(s->text, 1, (size_t)s->length, text);
        sum.words++;
        for (int i = 0; i < s->length; i++) sum.words += s->text[i] == ' ';
        double nats = story_nats(s);
        sum.nats += nats;
        sum.probability += exp(-nats);
    }
    return sum;
}

// The four files, each of its own random numbers, and a line about each.
static void write_corpus(const StoriesOptions* o) {
    Story* s = (Story*)xmalloc(1, sizeof(Story));
    double start = now_seconds();
    FILE* text = file_create(o->out, "train.txt");
    s->random = random_start(o, TRAIN);
    Totals train = write_stories(s, text, NULL, INFINITY, 1e6 * o->train_mb);
    file_complete(text, o->out, "train.txt");
    printf("train.txt      %.0f stories, %.1f MB, %.0f MB/s\n", train.stories, 1e-6 * train.bytes,
        1e-6 * train.bytes / (now_seconds() - start));

    text = file_create(o->out, "val.txt");
    FILE* floor_rows = file_create(o->out, "val.floor");
    fprintf(floor_rows, "offset\tnats\n");
    s->random = random_start(o, VAL);
    Totals val = write_stories(s, text, floor_rows, (double)o->val_stories, INFINITY);
    file_complete(text, o->out, "val.txt");
    file_complete(floor_rows, o->out, "val.floor");
    // A story is expected P(text) times among those of train. Entropy bounds the number of stories
    // from below, and the mean of -ln P(text) estimates entropy.
    printf("val.txt        %.0f stories of %.0f words; expect %.1g of them in train.txt\n",
        val.stories, val.words / val.stories, train.stories * val.probability);
    printf("val.floor      %.2f nats a story, %.3f a word: at least 10^%.0f different stories\n",
        val.nats / val.stories, val.nats / val.words, floor(val.nats / val.stories / log(10)));

    text = file_create(o->out, "questions.tsv");
    uint64_t random = random_start(o, ENDINGS);
    s->random = random_start(o, CONTEXTS);
    for (int i = 0; i < o->questions; i++) write_question(text, s, i, &random);
    file_complete(text, o->out, "questions.tsv");
    printf("questions.tsv  %lld questions\n", (long long)o->questions);
    free(s);
}

int main(int argc, char** argv) {
    StoriesOptions o;
    OptionTable table = {OPTIONS, LENGTH(OPTIONS), &o, {0}};
    int n_plain = options_parse(&table, argc, argv);
    if (o.help) {
        printf("usage: ./stories --out DIR [options]    a corpus of short English stories\n\n");
        options_print_help(&table);
        return 0;
    }
    if (n_plain > 0) die(EXIT_USAGE, argv[0], "needs the name of an option in front, see --help");
    if (!o.out[0]) die(EXIT_USAGE, "--out", "not given, need a folder");
    if (mkdir(o.out, 0777) != 0 && errno != EEXIST) {
        die_errno(EXIT_RESOURCES, o.out, "need a folder to write to");
    }
    write_corpus(&o);
    return 0;
}
