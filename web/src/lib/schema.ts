/** Forms from types: which control a JSON Schema asks for, and the value to begin with. */

import type { Json, Parameter, Schema } from "../api/types";

export type Control =
  | { kind: "text"; format: string }
  | { kind: "number"; whole: boolean }
  | { kind: "flag" }
  | { kind: "choice"; options: Json[] }
  | { kind: "object"; fields: { name: string; schema: Schema; required: boolean }[] }
  | { kind: "tuple"; items: Schema[] }
  | { kind: "list"; item: Schema }
  | { kind: "json" };

/** Follows references, and takes "something or null" for that something. */
export function resolved(schema: Schema, root: Schema): { schema: Schema; nullable: boolean } {
  let found = schema;
  for (let depth = 0; depth < 20 && found.$ref; depth += 1) {
    const name = found.$ref.split("/").at(-1) ?? "";
    found = root.$defs?.[name] ?? {};
  }
  const options = found.anyOf;
  if (options) {
    const rest = options.filter((one) => one.type !== "null");
    const only = rest[0];
    if (rest.length === 1 && only && rest.length < options.length) return { ...resolved(only, root), nullable: true };
  }
  if (Array.isArray(found.type)) {
    const rest = found.type.filter((one) => one !== "null");
    if (rest.length === 1 && rest[0]) return { schema: { ...found, type: rest[0] }, nullable: found.type.includes("null") };
  }
  return { schema: found, nullable: false };
}

export function control(schema: Schema, root: Schema): Control {
  const found = resolved(schema, root).schema;
  if (found.enum) return { kind: "choice", options: found.enum };
  if (found.const !== undefined) return { kind: "choice", options: [found.const] };
  if (found.prefixItems) return { kind: "tuple", items: found.prefixItems };
  switch (found.type) {
    case "string":
      return { kind: "text", format: found.format ?? "" };
    case "integer":
      return { kind: "number", whole: true };
    case "number":
      return { kind: "number", whole: false };
    case "boolean":
      return { kind: "flag" };
    case "object": {
      const names = Object.entries(found.properties ?? {});
      if (!names.length) return { kind: "json" };
      return { kind: "object", fields: names.map(([name, one]) => ({ name, schema: one, required: found.required?.includes(name) ?? false })) };
    }
    case "array":
      return found.items && control(found.items, root).kind !== "json" ? { kind: "list", item: found.items } : { kind: "json" };
    default:
      return { kind: "json" };
  }
}

/** What a form begins with. */
export function initial(schema: Schema, root: Schema): Json {
  const { schema: found, nullable } = resolved(schema, root);
  if (schema.default !== undefined) return schema.default;
  if (found.default !== undefined) return found.default;
  if (nullable) return null;
  const shown = control(schema, root);
  switch (shown.kind) {
    case "text":
      return "";
    case "number":
      return 0;
    case "flag":
      return false;
    case "choice":
      return shown.options[0] ?? null;
    case "tuple":
      return shown.items.map((one) => initial(one, root));
    case "object":
      return Object.fromEntries(shown.fields.filter((one) => one.required).map((one) => [one.name, initial(one.schema, root)]));
    default:
      return found.type === "array" ? [] : found.type === "object" ? {} : null;
  }
}

/** The arguments that a form begins with. */
export function initialArgs(parameters: readonly Parameter[]): Json[] {
  return parameters.map((one) => (one.required ? initial(one.schema, one.schema) : one.default));
}

/** The arguments to send: those at the end that are optional and unchanged are left to the code. */
export function givenArgs(parameters: readonly Parameter[], args: readonly Json[]): Json[] {
  const begun = initialArgs(parameters);
  let count = args.length;
  while (count > 0 && !parameters[count - 1]?.required && JSON.stringify(args[count - 1]) === JSON.stringify(begun[count - 1])) count -= 1;
  return args.slice(0, count);
}
