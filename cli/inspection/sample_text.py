"""A page of English and of code, to see how much of real text two vocabularies share."""

from __future__ import annotations

SAMPLE = '''\
The lighthouse keeper wrote every evening, even when nothing had happened. "Wind from the
north-west," he noted on 3 October 1911, "and two ships, neither of which answered." He counted the
hours by the lamp's slow turning: 12 seconds of light, 48 of darkness, and so on until morning. His
daughter, who had gone to the mainland for school, asked in her letters whether he wasn't lonely.
He never quite answered; instead he described the birds, the café's new owner, and the price of oil.

1. Boil 250 ml of water.
2. Add the rice, stir once, and cover.
3. Wait 18 minutes - don't lift the lid!

def moving_average(values: list[float], window: int = 3) -> list[float]:
    """Return the mean of each full window of `values`."""
    if window <= 0:
        raise ValueError(f"window must be positive, got {window}")
    total = sum(values[:window])
    averages = [total / window]
    for index in range(window, len(values)):
        total += values[index] - values[index - window]
        averages.append(total / window)
    return averages

async function fetchUser(id) {
  const response = await fetch(`/api/users/${id}`, { method: "GET" });
  if (!response.ok) {
    throw new Error("HTTP " + response.status);
  }
  return response.json(); // cached for 60 s
}

SELECT name, COUNT(*) AS orders FROM customers JOIN orders USING (customer_id)
WHERE orders.created_at >= '2024-01-01' GROUP BY name ORDER BY orders DESC LIMIT 10;

#include <stdio.h>
int main(void) {
\tfor (int i = 0; i < 10; ++i)
\t\tprintf("%d: %s\\n", i, i % 2 ? "odd" : "even");
\treturn 0;
}
'''
