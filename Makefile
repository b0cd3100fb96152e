# make            the programs: train_gpt, prepare, stories (gcc or clang, OpenMP, nothing else)
# make train      the main job: corpus, vocabulary, shards, training, about 5 minutes on 2 cores
# make test       all tests; DATA=FOLDER adds those on real text (vocab.bpe, tinyshakespeare.txt, ..)
# make sanitize   all tests under the address and undefined-behaviour sanitizers
# make clean      removes what make built, and nothing that a run has made

CC = gcc
# No -ffast-math: it turns isnan(x) into 0. The two flags let loops vectorise without it.
CFLAGS = -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -Wall -Wextra
# Where the programs go; another folder keeps a second build apart.
OUT = .
DATA =

PROGRAMS = $(OUT)/train_gpt $(OUT)/prepare $(OUT)/stories
TESTS = $(OUT)/test_gpt $(addprefix $(OUT)/build/,test_tokens test_tokenizer test_stories test_files)
BASE = data/tokens.h data/options.h
VOCABULARY = data/tokenizer.h data/unicode_ranges.inc
FILES = data/tensors.h data/checkpoint.h data/eval.h data/score.h
COMPILE = @mkdir -p $(@D) && $(CC) $(CFLAGS) $< -o $@ -lm

all: $(PROGRAMS)

$(OUT)/train_gpt: train_gpt.c $(BASE) $(VOCABULARY) $(FILES)
	$(COMPILE)
$(OUT)/prepare: data/prepare.c $(BASE) $(VOCABULARY) data/eval.h
	$(COMPILE)
$(OUT)/stories: data/stories.c $(BASE)
	$(COMPILE)
$(OUT)/test_gpt: test_gpt.c train_gpt.c $(BASE) $(VOCABULARY) $(FILES)
	$(COMPILE)
$(OUT)/build/test_%: dev/test/test_%.c dev/test/check.h data/stories.c $(BASE) $(VOCABULARY) $(FILES)
	$(COMPILE)

# The built-in corpus: texts, then shards with their vocabulary, then the questions.
data/stories/train.txt: stories
	./stories --out data/stories --questions 400
data/stories/train_000000.bin: data/stories/train.txt prepare
	./prepare data/stories/train.txt --val-text data/stories/val.txt --split-docs '\n\n' \
	    --vocab 1024 --out data/stories
data/stories/questions.bin: data/stories/train_000000.bin
	./prepare --eval data/stories/questions.tsv --out data/stories

# 1.0 M parameters, 4.6 M tokens. Run again, it goes on where it was stopped.
STEPS = 2000
train: train_gpt data/stories/questions.bin
	./train_gpt --out out/stories --resume --layers 4 --heads 4 --channels 128 --batch 9 \
	    --steps $(STEPS) --val-every 250 --sample-every 500 --save-every 250 \
	    --eval data/stories/questions.bin

test: $(PROGRAMS) $(TESTS)
	@DATA=$(DATA) CC="$(CC)" sh dev/test/run.sh $(OUT)

sanitize:
	@$(MAKE) --no-print-directory test OUT=build/sanitize DATA=$(DATA) CC=$(CC) \
	    CFLAGS="-O1 -g -march=native -fopenmp -fsanitize=address,undefined \
	    -fno-sanitize-recover=all -Wall -Wextra"

help:
	@sed -n 's/^# make /make /p' Makefile

clean:
	rm -rf $(PROGRAMS) $(TESTS) build

.PHONY: all train test sanitize help clean
