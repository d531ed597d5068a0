// An SDR SDRAM of 16-bit words that checks what its data sheet demands.  One tick a clock.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

class SdramModel {
public:
    struct Timing {
        uint32_t rcd, rp, ras, rc, rrd, rfc, wr, mrd, refi, power_up, cas;
    };

    SdramModel(const Timing &timing, unsigned row_bits, unsigned column_bits, unsigned bank_bits)
        : t(timing), columns(column_bits), rows(row_bits), banks(1u << bank_bits), bank(banks),
          cells(size_t(1) << (row_bits + column_bits + bank_bits)), pipe(8) {}

    // A rising edge of the memory's clock, with the pins before it.  `code` is ras_n, cas_n, we_n.
    void tick(bool cke, bool cs_n, unsigned code, unsigned ba, unsigned a, unsigned dqm, uint16_t dq, bool dq_driven) {
        now++;
        // A word is on the pins in the cycle before the edge at which the controller takes it.
        if (pipe[0].valid && dq_driven) fail("controller and memory drive the data pins together");
        for (size_t i = 0; i + 1 < pipe.size(); i++) pipe[i] = pipe[i + 1];
        pipe.back() = {};
        if (!cke) return;
        if (!ready && now < t.power_up && !cs_n && code != 7) fail("command before the power-up delay is over");
        if (ready && now - last_refresh > 9ull * t.refi) fail("no refresh for more than nine intervals");
        if (cs_n || code == 7) return;
        if (now < busy_until) fail("command during a refresh or a mode change");
        Bank &b = bank[ba];
        switch (code) {
        case 3: activate(b, a); break;
        case 5: read(b, ba, a, dqm); break;
        case 4: write(b, ba, a, dqm, dq, dq_driven); break;
        case 2:
            for (unsigned i = 0; i < banks; i++)
                if ((a >> 10 & 1) || i == ba) precharge(bank[i]);
            break;
        case 1:
            for (auto &each : bank) {
                if (each.open) fail("refresh with an open bank");
                if (now < each.precharged + t.rp) fail("tRP before a refresh");
            }
            busy_until = now + t.rfc;
            last_refresh = now;
            refreshes++;
            break;
        case 0:
            for (auto &each : bank)
                if (each.open) fail("mode change with an open bank");
            if (refreshes < 2) fail("mode change before two refreshes");
            if ((a & 7) != 0 || (a >> 4 & 7) != t.cas) fail("mode is not single words with the right latency");
            busy_until = now + t.mrd;
            ready = true;
            break;
        default: fail("unknown command");
        }
    }

    // Data pins after the tick.
    uint16_t dq() const { return pipe[0].valid ? pipe[0].word : 0xDEAD; }
    const char *violation() const { return message.empty() ? nullptr : message.c_str(); }
    uint64_t words_read = 0, words_written = 0, activations = 0, refreshes = 0;

private:
    struct Bank {
        bool open = false;
        unsigned row = 0;
        uint64_t activated = 0, precharged = 0, written = 0;
        bool used = false;
    };
    struct Word {
        bool valid = false;
        uint16_t word = 0;
    };
    Timing t;
    unsigned columns, rows, banks;
    std::vector<Bank> bank;
    std::vector<uint16_t> cells;
    std::vector<Word> pipe;
    uint64_t now = 0, busy_until = 0, last_refresh = 0, last_activate = 0;
    bool ready = false;
    std::string message;

    void fail(const char *text) {
        if (message.empty()) message = std::string(text) + " in cycle " + std::to_string(now);
    }
    size_t place(unsigned ba, unsigned row, unsigned a) const {
        return ((size_t(row) * banks + ba) << columns) | (a & ((1u << columns) - 1));
    }
    void activate(Bank &b, unsigned a) {
        if (!ready) fail("activate before the mode was set");
        if (b.open) fail("activate of an open bank");
        if (now < b.precharged + t.rp) fail("tRP");
        if (b.used && now < b.activated + t.rc) fail("tRC");
        if (activations && now < last_activate + t.rrd) fail("tRRD");
        b.open = b.used = true;
        b.row = a;
        b.activated = last_activate = now;
        activations++;
    }
    void precharge(Bank &b) {
        if (!b.open) return;
        if (now < b.activated + t.ras) fail("tRAS");
        if (b.written && now < b.written + t.wr) fail("tWR");
        b.open = false;
        b.written = 0;
        b.precharged = now;
    }
    void access(Bank &b, unsigned a) {
        if (!b.open) fail("access to a closed bank");
        if (now < b.activated + t.rcd) fail("tRCD");
        if (a >> 10 & 1) fail("automatic precharge is not modelled");
    }
    void read(Bank &b, unsigned ba, unsigned a, unsigned dqm) {
        access(b, a);
        if (dqm) fail("masked read");
        // The word is there from the edge before the latency's last one on.
        pipe[t.cas - 1] = {true, cells[place(ba, b.row, a)]};
        words_read++;
    }
    void write(Bank &b, unsigned ba, unsigned a, unsigned dqm, uint16_t dq, bool driven) {
        access(b, a);
        if (!driven) fail("write without data");
        uint16_t &cell = cells[place(ba, b.row, a)];
        if (!(dqm & 1)) cell = (cell & 0xFF00) | (dq & 0x00FF);
        if (!(dqm & 2)) cell = (cell & 0x00FF) | (dq & 0xFF00);
        b.written = now;
        words_written++;
    }
};
