/** Errors as they stand in journals and attempts. */

import type { Attempt, Failure } from "../api/types";

/** The bare class name: `CardNetworkTimeout` of `shop.errors:CardNetworkTimeout`. */
export function failureKind(failure: Failure): string {
  return bareName(failure.type);
}

export function bareName(type: string): string {
  return type.slice(type.lastIndexOf(":") + 1).split(".").at(-1) ?? type;
}

/** The error of an attempt; null when it has none, or when it is coded and cannot be read here. */
export function attemptFailure(attempt: Attempt): Failure | null {
  if (attempt.error === null) return null;
  try {
    const found: unknown = JSON.parse(attempt.error);
    if (typeof found === "object" && found !== null && "type" in found) return found as Failure;
  } catch {
    // falls through: it is no JSON
  }
  return { type: "unreadable", message: "It cannot be read here: it is coded." };
}
