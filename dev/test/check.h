// check.h: how the small tests report: one line a check, a closing line, an exit status.
#ifndef CHECK_H
#define CHECK_H
#include <stdio.h>

static int checks_passed, checks_failed;

// One check: the error measured, the bound it must keep, the verdict. NaN fails.
static inline void check(const char* name, double error, double bound) {
    int ok = error <= bound;
    if (ok) checks_passed++;
    else checks_failed++;
    printf("%-64s %11.3g <= %-9.3g %s\n", name, error, bound, ok ? "ok" : "FAIL");
}

// A check that is either so or not: counted as an error of 0 or 1 under a bound of 0.
static inline void check_true(const char* name, int so) { check(name, so ? 0 : 1, 0); }

static inline int checks_close(void) {
    printf("%d passed, %d failed\n", checks_passed, checks_failed);
    return checks_failed != 0;
}

#endif
