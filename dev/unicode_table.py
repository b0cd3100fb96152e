#!/usr/bin/env python3
"""Writes data/unicode_ranges.inc: which characters are letters, numbers and white space.

    python3 dev/unicode_table.py > data/unicode_ranges.inc

The classes are those of GPT-2's split pattern. Letters are Unicode's categories L*, numbers are N*,
from Python's own copy of the database, so the version written is that of the Python that runs (3.11
has Unicode 14). A newer one only gives classes to code points that had none; each vocabulary that
is learned names its version in its first line. White space is written out below, for programs
differ about it: U+0085 belongs to it; U+001C to U+001F, U+180E, U+200B and U+FEFF do not.
"""
import sys
import unicodedata

SPACES = [(0x9, 0xd), (0x20, 0x20), (0x85, 0x85), (0xa0, 0xa0), (0x1680, 0x1680), (0x2000, 0x200a),
          (0x2028, 0x2029), (0x202f, 0x202f), (0x205f, 0x205f), (0x3000, 0x3000)]
WIDTH = 100


def ranges(major):
    """(first, last) of each run of code points whose category begins with the letter `major`."""
    runs = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != major:
            continue
        if runs and runs[-1][1] == code - 1:
            runs[-1] = (runs[-1][0], code)
        else:
            runs.append((code, code))
    return runs


def print_rows(name, runs):
    """Rows of the table, as many on a line as its width has room for."""
    line = "   "
    for first, last in runs:
        row = f" {{{name}, 0x{first:x}, 0x{last:x}}},"
        if len(line) + len(row) > WIDTH:
            print(line)
            line = "   "
        line += row
    print(line)


version = unicodedata.unidata_version
print(f"// unicode_ranges.inc: class, first and last code point, by Unicode {version}.")
print("// Written by dev/unicode_table.py; code points in no range are signs.")
print(f'#define UNICODE_VERSION "{version}"')
print("static const uint32_t unicode_ranges[][3] = {")
print_rows("SPACE", SPACES)
print_rows("NUMBER", ranges("N"))
print_rows("LETTER", ranges("L"))
print("};")
