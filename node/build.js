'use strict';
// Builds the module: node build.js [PREFIX], where PREFIX has `include/tercet.h` and `lib/libtercet.so` (by default
// what pkg-config reports). Needs a C compiler and the headers of Node, and nothing of npm.

const { execFileSync } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

function fail(reason) {
  console.error(`error: ${reason}`);
  process.exit(1);
}

const shared = { linux: 'libtercet.so', darwin: 'libtercet.dylib' }[process.platform];
if (!shared) fail(`the build script supports Linux and macOS, not ${process.platform}`);

function prefix() {
  if (process.argv[2]) return path.resolve(process.argv[2]);
  try {
    return execFileSync('pkg-config', ['--variable=prefix', 'tercet'], { encoding: 'utf8' }).trim();
  } catch {
    return fail('no library: run `node build.js PREFIX`, or install tercet.pc where pkg-config finds it');
  }
}

function headers() {
  const places = [
    process.env.NODE_INCLUDE,
    path.join(path.dirname(fs.realpathSync(process.execPath)), '..', 'include', 'node'),
    '/usr/include/node',
    '/usr/include/nodejs/src',
  ];
  const found = places.find((place) => place && fs.existsSync(path.join(place, 'node_api.h')));
  return found ?? fail('no node_api.h: set NODE_INCLUDE to the folder of the headers of Node');
}

const root = prefix();
const library = path.join(root, 'lib', shared);
if (!fs.existsSync(library)) fail(`${library}: no such file; run \`cargo xtask capi --prefix ${root}\``);

const out = path.join(__dirname, 'build');
fs.mkdirSync(out, { recursive: true });
fs.copyFileSync(library, path.join(out, shared));
const platform =
  process.platform === 'darwin'
    ? ['-dynamiclib', '-undefined', 'dynamic_lookup', '-Wl,-rpath,@loader_path']
    : ['-shared', '-Wl,-rpath,$ORIGIN'];
const compiler = process.env.CC || 'cc';
const args = [
  '-std=c11', '-O2', '-fPIC', '-Wall', '-Wextra', '-Werror', '-DNAPI_VERSION=8',
  `-I${headers()}`, `-I${path.join(root, 'include')}`,
  path.join(__dirname, 'src', 'addon.c'), '-o', path.join(out, 'tercet.node'),
  `-L${out}`, '-ltercet', ...platform,
];
try {
  execFileSync(compiler, args, { stdio: 'inherit' });
} catch {
  fail(`\`${compiler} ${args.join(' ')}\` failed`);
}
console.log(path.join(out, 'tercet.node'));
