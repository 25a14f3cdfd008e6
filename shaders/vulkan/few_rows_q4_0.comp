#version 460
// Few rows times blocks of Q4_0: see include/few_rows.glsl.
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_GOOGLE_include_directive : require

#define WORDS uint
#define HEAD uvec4

#include "few_rows_common.glsl"

const uint AHEAD = 4;
// 16 bytes of codes of a block.
const uint CODE_VECS = 1;

#include "few_rows_blocks.glsl"

uint load_words(Place place, const uint step, const uint row) { return b[word_of(place, step, row)]; }

// Low halves of bytes are weights 0 to 15, high ones 16 to 31; bytes 0 and 2 are a pair.
uint x_at(const uint step) { return 32u * step + 4u * t; }
const uint X_NEXT = 16;
#define X_FIRST xz
#define X_SECOND yw

f16vec2 low_pair(uint w) { return about_1024(w, 0x000f000fu) - f16vec2(1032.0hf); }

f16vec2 high_pair(uint w) { return fma(about_1024(w, 0x00f000f0u), f16vec2(0.0625hf), f16vec2(-72.0hf)); }

void take_step(const uint step, uint u, uint v, uint slice) {
    begin_products();
    fill_left(low_pair(u), low_pair(u >> 8), low_pair(v), low_pair(v >> 8));
    multiply(2u * step);
    fill_left(high_pair(u), high_pair(u >> 8), high_pair(v), high_pair(v >> 8));
    multiply(2u * step + 1u);
    add_products(scale_of(head_u, step, slice), scale_of(head_v, step, slice));
}

#include "few_rows.glsl"
