/** A signal whose value outlives the page: the browser keeps it. */
import { effect, signal } from "@angular/core";
import type { WritableSignal } from "@angular/core";

/** Call in an injection context. A browser that keeps nothing is no problem: the value lasts as long as the page. */
export function kept<T extends string | number | boolean | null>(name: string, first: T): WritableSignal<T> {
  const key = `livetables.${name}`;
  const value = signal<T>(read(key, first));
  effect(() => {
    write(key, value());
  });
  return value;
}

function read<T>(key: string, first: T): T {
  try {
    const text = localStorage.getItem(key);
    const value = text === null ? first : (JSON.parse(text) as unknown);
    return first === null || typeof value === typeof first ? (value as T) : first;
  } catch {
    return first;
  }
}

function write(key: string, value: unknown): void {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // Storage is full or not allowed.
  }
}
