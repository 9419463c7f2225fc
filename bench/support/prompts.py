"""The prompts that every benchmark uses: twelve of code, twelve of English.

Each is here twice: as a user's message, for targets that are instruction-tuned, and as the
beginning of a text, for base models. Knows text only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    name: str
    message: str  # for chat targets
    beginning: str  # for base models


CODE = (
    Prompt(
        "fibonacci",
        "Write a Python function that returns the n-th Fibonacci number iteratively.",
        'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    ),
    Prompt(
        "binary-search",
        "Write a Python function for binary search over a sorted list, with a docstring.",
        "def binary_search(items, target):\n    low, high = 0, len(items) - 1\n",
    ),
    Prompt(
        "csv",
        "Show how to read a CSV file in Python and print the sum of the column named price.",
        "import csv\n\ntotal = 0\nwith open('prices.csv') as file:\n",
    ),
    Prompt(
        "stack",
        "Write a Python class Stack with push, pop and peek methods.",
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
        "    def push(self, item):\n",
    ),
    Prompt(
        "sql",
        "Write a SQL query that lists the ten customers who spent the most in 2023.",
        "-- The ten customers who spent the most in 2023\nSELECT",
    ),
    Prompt(
        "javascript",
        "Write a JavaScript function that debounces another function.",
        "// Returns a debounced version of fn\nfunction debounce(fn, delay) {\n",
    ),
    Prompt(
        "c-strings",
        "Write a C function that reverses a string in place.",
        "#include <string.h>\n\n/* Reverse a string in place. */\nvoid reverse(char *s) {\n",
    ),
    Prompt(
        "html",
        "Write a minimal HTML page with a heading, a paragraph and a list of three fruits.",
        "<!DOCTYPE html>\n<html>\n<head>\n    <title>Fruits</title>\n</head>\n<body>\n",
    ),
    Prompt(
        "regex",
        "Write a Python function that finds all e-mail addresses in a text with a regular "
        "expression.",
        "import re\n\ndef find_emails(text):\n",
    ),
    Prompt(
        "test",
        "Write pytest tests for a function add(a, b) that adds two numbers.",
        "import pytest\nfrom calculator import add\n\ndef test_add_positive():\n",
    ),
    Prompt(
        "rust",
        "Write a Rust function that returns the largest element of a slice of i32.",
        "fn largest(list: &[i32]) -> i32 {\n    let mut largest = list[0];\n",
    ),
    Prompt(
        "bash",
        "Write a bash script that counts the lines of all .txt files in a folder.",
        "#!/bin/bash\n# Count the lines of all .txt files in a folder\n",
    ),
)

ENGLISH = (
    Prompt(
        "sky",
        "Explain in simple words why the sky is blue.",
        "The sky is blue because",
    ),
    Prompt(
        "breakfast",
        "Give me three ideas for a healthy breakfast.",
        "Three ideas for a healthy breakfast are:\n1.",
    ),
    Prompt(
        "photosynthesis",
        "What is photosynthesis and why does it matter?",
        "Photosynthesis is the process by which",
    ),
    Prompt(
        "letter",
        "Write a short, polite e-mail asking a colleague to move a meeting to Friday.",
        "Dear Anna,\n\nI hope this message finds you well. I am writing to ask whether",
    ),
    Prompt(
        "token_counts",
        "Summarise the causes of the First World War in a few sentences.",
        "The main causes of the First World War were",
    ),
    Prompt(
        "story",
        "Tell the beginning of a story about a lighthouse keeper and a storm.",
        "The lighthouse keeper had seen many storms, but",
    ),
    Prompt(
        "water",
        "Describe the water cycle for a ten-year-old.",
        "The water cycle begins when the sun",
    ),
    Prompt(
        "advice",
        "How can I learn to sleep better? Answer with a short list.",
        "If you want to sleep better, there are several things you can do. First,",
    ),
    Prompt(
        "compare",
        "What is the difference between a virus and a bacterium?",
        "The difference between a virus and a bacterium is that",
    ),
    Prompt(
        "travel",
        "Recommend what to see in Paris in one day.",
        "If you have only one day in Paris, you should",
    ),
    Prompt(
        "economy",
        "What is inflation, and how do central banks fight it?",
        "Inflation is a general increase in prices. Central banks",
    ),
    Prompt(
        "poem",
        "Write a short poem in English about autumn leaves.",
        "Autumn leaves are falling down,\n",
    ),
)

PROMPTS = tuple(prompt for pair in zip(CODE, ENGLISH, strict=True) for prompt in pair)
