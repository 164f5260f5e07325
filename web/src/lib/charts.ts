/** Paths of charts. Pure arithmetic, no DOM. */

/** The next round number above whose half is round, too: 1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10, 12 and so on. */
export function niceTop(value: number): number {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  const found = [1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10].find((step) => step * size >= value * 0.999_999) ?? 10;
  return found * size;
}

function points(values: readonly (number | null)[], width: number, height: number, top: number): (readonly [number, number] | null)[] {
  return values.map((value, index) => (value === null ? null : ([((index + 0.5) / values.length) * width, height - 1 - (value / top) * (height - 2)] as const)));
}

/** A line with gaps where there is no value. */
export function linePath(values: readonly (number | null)[], width: number, height: number, top: number): string {
  let isDown = false;
  const parts: string[] = [];
  for (const point of points(values, width, height, top)) {
    if (!point) {
      isDown = false;
      continue;
    }
    parts.push(`${isDown ? "L" : "M"}${point[0].toFixed(1)},${point[1].toFixed(1)}`);
    isDown = true;
  }
  return parts.join("");
}

/** A dot at each value: strokes without length, which round caps make visible. */
export function dotsPath(values: readonly (number | null)[], width: number, height: number, top: number): string {
  return points(values, width, height, top)
    .flatMap((point) => (point ? [`M${point[0].toFixed(1)},${point[1].toFixed(1)}h0`] : []))
    .join("");
}
