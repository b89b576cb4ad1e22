"""The benchmark's workload: chat questions of different lengths, answered at a fixed length."""

from __future__ import annotations

from dataclasses import dataclass

NUM_NEW_TOKENS = 64

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a CPU cache works in simple terms.",
    "Name three fruits that are red and say where each of them grows.",
    "What is the difference between a list and a tuple in Python?",
    "Give me a recipe for pancakes for four people, with amounts in grams.",
    "Who wrote Hamlet, and what is the play about?",
    "Summarise in two sentences why the sky is blue.",
    "Translate to French: the cat sleeps on the warm roof of the old house.",
    "I have a meeting at nine and a train at eleven, and the station is an hour away. "
    "The meeting usually takes ninety minutes. Can I make it, and what would you advise?",
    "List the planets of the solar system in order of their distance from the sun.",
    "How do vaccines work?",
    "What should I think about when I buy a used bicycle? I will ride it to work every day, "
    "about eight kilometres each way, in all weather, and I do not want to spend much.",
    "Tell me a story about a lighthouse keeper.",
    "Why do leaves change their colour in autumn?",
    "Write an email to my landlord that asks for a repair of the heating.",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts as token ids; closed loop, `concurrency` requests at a time."""

    concurrency: int
    prompts: tuple[tuple[int, ...], ...]


def question(number: int) -> str:
    """A question that no other number gives, so that nothing but a common beginning is cached."""
    return f"{QUESTIONS[number % len(QUESTIONS)]} ({number})"


def num_requests(concurrency: int) -> int:
    """Three times the concurrency, at least eight."""
    return max(8, 3 * concurrency)
