/** Which of many fits what was typed: letters in order, the earlier and the closer the better. */

export function rank<T>(items: readonly T[], typed: string, text: (item: T) => string): T[] {
  const wanted = typed.trim().toLowerCase();
  if (!wanted) return [...items];
  return items
    .map((item) => ({ item, score: score(text(item).toLowerCase(), wanted) }))
    .filter((one) => one.score < Infinity)
    .sort((a, b) => a.score - b.score)
    .map((one) => one.item);
}

/** Less is better; infinite when it does not fit. */
export function score(text: string, wanted: string): number {
  const whole = text.indexOf(wanted);
  if (whole >= 0) return whole;
  let at = -1;
  let sum = 100;
  for (const letter of wanted.replace(/\s+/g, "")) {
    const next = text.indexOf(letter, at + 1);
    if (next < 0) return Infinity;
    sum += next - at - 1;
    at = next;
  }
  return sum;
}
