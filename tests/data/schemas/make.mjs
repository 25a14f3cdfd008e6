// Writes `zod.json`: JSON schemas that zod 4 prints, by the name of their type.
// `npm install zod@4 && node make.mjs`
import { writeFileSync } from "node:fs";
import { z } from "zod";

const types = {
  email: z.email(), uuid: z.uuid(), guid: z.guid(), datetime: z.iso.datetime(), date: z.iso.date(),
  time: z.iso.time(), duration: z.iso.duration(), url: z.url(), ipv4: z.ipv4(), ipv6: z.ipv6(),
  cidrv4: z.cidrv4(), cidrv6: z.cidrv6(), base64: z.base64(), base64url: z.base64url(), hex: z.hex(),
  hostname: z.hostname(), mac: z.mac(), emoji: z.emoji(), cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(),
  xid: z.xid(), ksuid: z.ksuid(), nanoid: z.nanoid(), jwt: z.jwt(), e164: z.e164(),
  int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(), float64: z.float64(),
  positive: z.number().positive(), multiple: z.number().multipleOf(0.5),
  length: z.string().min(2).max(5), regex: z.string().regex(/^\w+$/), unicode: z.string().regex(/^[\p{L}\d]+$/u),
  lookahead: z.string().regex(/^(?=.*\d).+$/), boundary: z.string().regex(/\bfoo\b/),
  starts: z.string().startsWith("a"), includes: z.string().includes("a.b"), lowercase: z.string().lowercase(),
  enumeration: z.enum(["a", "b"]), literal: z.literal("x"), nullable: z.string().nullable(),
  optional: z.string().optional(), any: z.any(), unknown: z.unknown(), json: z.json(),
  record: z.record(z.string(), z.number()), enum_record: z.record(z.enum(["a", "b"]), z.string()),
  partial_record: z.partialRecord(z.enum(["a", "b"]), z.string()),
  pattern_record: z.record(z.string().regex(/^a/), z.string()),
  union: z.union([z.string(), z.number()]), tuple: z.tuple([z.string(), z.number()]),
  discriminated: z.discriminatedUnion("t", [
    z.object({ t: z.literal("a"), x: z.number() }),
    z.object({ t: z.literal("b"), y: z.string() }),
  ]),
  array: z.array(z.string()).min(1).max(3), intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.string() })),
  strict: z.strictObject({ a: z.string() }), loose: z.looseObject({ a: z.string() }),
  catchall: z.object({ a: z.string() }).catchall(z.number()),
};

const all = {};
for (const [name, type] of Object.entries(types)) {
  for (const target of ["draft-2020-12", "draft-7"]) {
    all[`${name} ${target}`] = z.toJSONSchema(z.object({ v: type }), { target, io: "input" });
  }
}
writeFileSync("zod.json", JSON.stringify(all, null, 1) + "\n");
