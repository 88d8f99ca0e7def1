#!/usr/bin/env python3
"""Tests of what check_comments.py takes for a comment without its noun, and for one that is too wide."""
import unittest

import check_comments


class Comments(unittest.TestCase):
    def subjectless(self, text):
        return [number for number, comment in check_comments.comments(text.splitlines()) if check_comments.SUBJECTLESS.match(comment)]

    def test_first_words_of_blocks_and_of_what_stands_behind_members_count(self):
        self.assertEqual([1, 3, 4, 5], self.subjectless("/// What it is.\n/// What follows.\nint a;  ///< of b\nint b;  ///< likewise\n"
                                                        "  /// Those of c.\n"))

    def test_nouns_and_words_that_only_begin_so_do_not(self):
        self.assertEqual([], self.subjectless("/// The part of a.\n/// of what\nint a;  ///< offset\n// Of a body.\n/// Whatever\n"))

    def test_comment_lines_have_at_most_100_columns(self):
        lines = ["// " + "x" * 97, "// " + "x" * 98, "  /// " + "x" * 95, "a = b;  // " + "x" * 90, 'f("' + "x" * 100 + '");']
        self.assertEqual([2, 3, 4], check_comments.wide(lines))


if __name__ == "__main__":
    unittest.main()
