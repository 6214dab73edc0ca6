// Where keys and values lie in a cache of attention: `[layer][k or v][page][kv head][position in page][head_dim]`. Places are
// counted in units of 16 bits, because the blocks of Q8_0 have 34 bytes.

fn head_place(part: u32, head: u32, kv_heads: u32, slot: u32, position: u32, head_dim: u32) -> u32 {
    let at = command.at;
    let page = pages[at.lists + slot * at.entries + position / at.page];
    let index = ((part * at.pages + page) * kv_heads + head) * at.page + position % at.page;
    return at.first + index * head_units(head_dim);
}
