// A board: the design under Verilator, its SDRAM (if it has one), and a serial line of bytes.
#include "Vcore.h"
#include "verilated.h"

#include <cstring>
#include <deque>

#include "shape.h"
#ifdef FC_SDRAM
#include "sdram_model.h"
#endif

double sc_time_stamp() { return 0; }

namespace {

struct Board {
    VerilatedContext context;
    Vcore top{&context};
    uint64_t cycle = 0;
    std::deque<uint8_t> into, out;
    // The line to the board: bits that are left of a byte.  The line from it: where a byte is.
    unsigned send_bits = 0, send_left = 0, send_word = 0;
    unsigned take_bits = 0, take_left = 0, take_word = 0;
    bool taking = false, line_error = false;
#ifdef FC_SDRAM
    SdramModel memory{{FC_TIMING}, FC_ROW_BITS, FC_COLUMN_BITS, FC_BANK_BITS};
    uint16_t dq_late = 0;
#endif

    Board() {
        top.rx = 1;
        top.rst = 1;
        for (int i = 0; i < 4; i++) step();
        top.rst = 0;
    }

    void step() {
#ifdef FC_SDRAM
        // Pins before the edge; the shell's registers make the data a cycle late.
        bool cke = top.sdram___05Fcke, cs_n = top.sdram___05Fcs_n, oe = top.sdram___05Fdq_oe;
        unsigned code = top.sdram___05Fras_n << 2 | top.sdram___05Fcas_n << 1 | top.sdram___05Fwe_n;
        unsigned ba = top.sdram___05Fba, a = top.sdram___05Fa, dqm = top.sdram___05Fdqm;
        uint16_t dq = top.sdram___05Fdq_o;
#endif
        if (!top.rst) line();
        top.clk = 1;
#ifdef FC_SDRAM
        memory.tick(cke, cs_n, code, ba, a, dqm, dq, oe);
#endif
        top.eval();
#ifdef FC_SDRAM
        top.sdram___05Fdq_i = FC_READ_DELAY ? dq_late : memory.dq();
        dq_late = memory.dq();
#endif
        top.clk = 0;
        top.eval();
        cycle++;
    }

    void line() {
        if (send_left == 0) {
            if (send_bits == 0 && !into.empty()) {
                send_word = 0x200u | unsigned(into.front()) << 1;
                into.pop_front();
                send_bits = 10;
            }
            if (send_bits) {
                top.rx = send_word & 1;
                send_word >>= 1;
                send_bits--;
                send_left = FC_BIT - 1;
            } else {
                top.rx = 1;
            }
        } else {
            send_left--;
        }
        if (!taking) {
            if (!top.tx) {
                taking = true;
                take_bits = take_word = 0;
                take_left = FC_BIT + FC_BIT / 2;
            }
        } else if (--take_left == 0) {
            if (take_bits == 8) {
                line_error |= !top.tx;
                out.push_back(take_word);
                taking = false;
            } else {
                take_word |= unsigned(top.tx) << take_bits++;
                take_left = FC_BIT;
            }
        }
    }
};

}  // namespace

extern "C" {
void *board_new() { return new Board; }
void board_delete(void *board) { delete static_cast<Board *>(board); }
void board_send(void *board, const uint8_t *bytes, uint64_t count) {
    auto &into = static_cast<Board *>(board)->into;
    into.insert(into.end(), bytes, bytes + count);
}
uint64_t board_take(void *board, uint8_t *bytes, uint64_t most) {
    auto &out = static_cast<Board *>(board)->out;
    uint64_t count = 0;
    for (; count < most && !out.empty(); out.pop_front()) bytes[count++] = out.front();
    return count;
}
// Run; end early when a byte has come and none is left to send.
uint64_t board_run(void *board, uint64_t cycles) {
    auto &b = *static_cast<Board *>(board);
    uint64_t done = 0;
    while (done < cycles) {
        b.step();
        done++;
        if (!b.out.empty() && !b.taking && b.into.empty() && b.top.tx) {
            if (b.out.size() >= 9) break;
        }
    }
    return done;
}
uint64_t board_cycle(void *board) { return static_cast<Board *>(board)->cycle; }
const char *board_violation(void *board) {
    auto &b = *static_cast<Board *>(board);
    if (b.line_error) return "a byte on the line has no stop bit";
#ifdef FC_SDRAM
    return b.memory.violation();
#else
    return nullptr;
#endif
}
void board_statistics(void *board, uint64_t *values) {
    std::memset(values, 0, 4 * sizeof *values);
#ifdef FC_SDRAM
    auto &memory = static_cast<Board *>(board)->memory;
    values[0] = memory.words_read;
    values[1] = memory.words_written;
    values[2] = memory.activations;
    values[3] = memory.refreshes;
#else
    (void)board;
#endif
}
}
