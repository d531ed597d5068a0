// Clock loop, memory model, register access and trace recorder around the verilated accelerator.
//
// Python calls a batch of cycles at a time (`fc_run`), never one.  The memory is as hard on the accelerator as
// AXI4 allows: a read gives what the memory held when its request was accepted, a write takes effect when its
// response is delivered, latency is fixed, and every channel may pause at random.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vfastcar.h"
#include "shape.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

namespace {

constexpr int kBeat = FC_BEAT_BYTES;
constexpr uint8_t kOkay = 0;

// What a memory beat of a read is on its way.
struct Beat {
    uint64_t due;
    uint8_t response;
    bool last;
    uint8_t data[kBeat];
};

// A write burst, whose beats take effect together with its response.
struct Burst {
    uint64_t address;
    unsigned beats;
    std::vector<uint8_t> data, strobes;
    uint64_t due;
};

// Settings of the memory; the layout is known to Python.
struct Settings {
    uint32_t latency;     // cycles from an accepted request to its first beat
    uint32_t beat_period; // a beat can pass every so many 1/256 cycles; 256 = one a cycle
    uint32_t pause;       // probability that a channel pauses in a cycle, in 1/2^32
    uint32_t fail_response;
    uint64_t seed;
    uint64_t fail_first, fail_last;  // bytes whose beats answer `fail_response`; none when first > last
};

// One word of the trace; the layout is known to Python.
struct Record {
    uint8_t tag, layer, lane, count;
    uint32_t addr, cycle;
    int32_t data[FC_VECTOR_WIDTH];
};

struct Decision {
    uint8_t layer, lane, eligible, compute;
    int32_t score;
};

struct Engine {
    std::unique_ptr<VerilatedContext> context{new VerilatedContext};
    std::unique_ptr<Vfastcar> top{new Vfastcar{context.get()}};
    std::vector<uint8_t> memory;
    Settings settings{};
    uint64_t random = 1;
    uint64_t cycle = 0;
    std::string violation;

    std::deque<Beat> reads;
    std::deque<Burst> writes;     // accepted requests that wait for data
    std::deque<Burst> answers;    // complete bursts that wait for their response
    uint64_t read_credit = 0, write_credit = 0;
    bool read_offered = false, answer_offered = false;

    // Handshakes of the host's channels in the last cycle, and what the answers carried.
    struct { bool aw, w, b, ar, r; uint8_t bresp, rresp; uint32_t rdata; } host{};

    std::vector<Record> records;
    std::vector<Decision> decisions;

    explicit Engine(uint64_t bytes) : memory(bytes) {
        top->aclk = 0;
        top->aresetn = 0;
        for (int i = 0; i < 4; ++i) tick();
        top->aresetn = 1;
        tick();
    }

    ~Engine() { top->final(); }

    bool go() {
        if (!settings.pause) return true;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        return static_cast<uint32_t>(random >> 16) >= settings.pause;
    }

    void violate(const char* rule, uint64_t value) {
        if (!violation.empty()) return;
        char text[160];
        std::snprintf(text, sizeof text, "%s (%#llx) in cycle %llu", rule, static_cast<unsigned long long>(value),
                      static_cast<unsigned long long>(cycle));
        violation = text;
    }

    void check_request(uint64_t address, unsigned len, unsigned size, unsigned burst) {
        const uint64_t bytes = uint64_t(len + 1) * kBeat;
        if (burst != 1) violate("burst is not incrementing", burst);
        if ((1u << size) != kBeat) violate("size is not that of a beat", size);
        if (address % kBeat) violate("address is not aligned to a beat", address);
        if (address / 4096 != (address + bytes - 1) / 4096) violate("burst crosses a 4 KiB boundary", address);
    }

    bool inside(uint64_t address) const { return address + kBeat <= memory.size(); }

    uint8_t response(uint64_t address) const {
        if (!inside(address)) return 3;  // DECERR
        if (settings.fail_first < address + kBeat && address <= settings.fail_last &&
            settings.fail_first <= settings.fail_last)
            return static_cast<uint8_t>(settings.fail_response);
        return kOkay;
    }

    // One cycle: inputs are set, the combinational paths settle, both sides see who shook hands, the clock rises.
    void tick() {
        Vfastcar& t = *top;
        if (read_credit < settings.beat_period) read_credit += 256;
        if (write_credit < settings.beat_period) write_credit += 256;

        t.m_axi_arready = go();
        t.m_axi_awready = go();
        // A beat that was offered stays until it is taken.
        read_offered = !reads.empty() &&
                       (read_offered || (reads.front().due <= cycle && read_credit >= settings.beat_period && go()));
        t.m_axi_rvalid = read_offered;
        if (read_offered) {
            const Beat& beat = reads.front();
            std::memcpy(&t.m_axi_rdata, beat.data, kBeat);
            t.m_axi_rresp = beat.response;
            t.m_axi_rlast = beat.last;
        }
        t.m_axi_wready = !writes.empty() && write_credit >= settings.beat_period && go();
        answer_offered = !answers.empty() && (answer_offered || (answers.front().due <= cycle && go()));
        t.m_axi_bvalid = answer_offered;
        if (answer_offered) t.m_axi_bresp = answer(answers.front());

        t.eval();

        host = {t.s_axil_awvalid && t.s_axil_awready, t.s_axil_wvalid && t.s_axil_wready,
                t.s_axil_bvalid && t.s_axil_bready,   t.s_axil_arvalid && t.s_axil_arready,
                t.s_axil_rvalid && t.s_axil_rready,   t.s_axil_bresp,
                t.s_axil_rresp,                       t.s_axil_rdata};
        if (t.aresetn) {
            handshakes();
            record();
        }
        t.aclk = 1;
        t.eval();
        t.aclk = 0;
        ++cycle;
    }

    uint8_t answer(const Burst& burst) const {
        for (unsigned i = 0; i < burst.beats; ++i)
            if (uint8_t code = response(burst.address + uint64_t(i) * kBeat)) return code;
        return kOkay;
    }

    void handshakes() {
        Vfastcar& t = *top;
        if (t.m_axi_rvalid && t.m_axi_rready) {
            reads.pop_front();
            read_offered = false;
            read_credit -= settings.beat_period;
        }
        if (t.m_axi_arvalid && t.m_axi_arready) {
            const uint64_t address = t.m_axi_araddr;
            check_request(address, t.m_axi_arlen, t.m_axi_arsize, t.m_axi_arburst);
            for (unsigned i = 0; i <= t.m_axi_arlen; ++i) {
                Beat beat{};
                const uint64_t at = address + uint64_t(i) * kBeat;
                beat.due = cycle + settings.latency + i;
                beat.response = response(at);
                beat.last = i == t.m_axi_arlen;
                if (inside(at)) std::memcpy(beat.data, &memory[at], kBeat);
                reads.push_back(beat);
            }
        }
        if (t.m_axi_bvalid && t.m_axi_bready) {
            commit(answers.front());
            answers.pop_front();
            answer_offered = false;
        }
        if (t.m_axi_wvalid && t.m_axi_wready) {
            Burst& burst = writes.front();
            const auto* data = reinterpret_cast<const uint8_t*>(&t.m_axi_wdata);
            const auto* strobes = reinterpret_cast<const uint8_t*>(&t.m_axi_wstrb);
            burst.data.insert(burst.data.end(), data, data + kBeat);
            for (int i = 0; i < kBeat; ++i) burst.strobes.push_back(strobes[i / 8] >> (i % 8) & 1);
            write_credit -= settings.beat_period;
            const bool complete = burst.data.size() == size_t(burst.beats) * kBeat;
            if (complete != bool(t.m_axi_wlast)) violate("WLAST is not on the last beat of its burst", burst.address);
            if (complete) {
                burst.due = cycle + settings.latency;
                answers.push_back(std::move(burst));
                writes.pop_front();
            }
        } else if (t.m_axi_wvalid && writes.empty()) {
            violate("data before its write request", 0);
        }
        if (t.m_axi_awvalid && t.m_axi_awready) {
            check_request(t.m_axi_awaddr, t.m_axi_awlen, t.m_axi_awsize, t.m_axi_awburst);
            writes.push_back(Burst{t.m_axi_awaddr, t.m_axi_awlen + 1u, {}, {}, 0});
        }
    }

    void commit(const Burst& burst) {
        for (unsigned i = 0; i < burst.beats; ++i) {
            const uint64_t at = burst.address + uint64_t(i) * kBeat;
            if (response(at) != kOkay) continue;
            for (int b = 0; b < kBeat; ++b)
                if (burst.strobes[size_t(i) * kBeat + b]) memory[at + b] = burst.data[size_t(i) * kBeat + b];
        }
    }

    template <typename Data>
    void word(unsigned tag, unsigned layer, unsigned lane, unsigned addr, unsigned count, const Data& data) {
        if (!tag) return;
        Record record{};
        record.tag = static_cast<uint8_t>(tag);
        record.layer = static_cast<uint8_t>(layer);
        record.lane = static_cast<uint8_t>(lane);
        record.count = static_cast<uint8_t>(count < FC_VECTOR_WIDTH ? count : FC_VECTOR_WIDTH);
        record.addr = addr;
        record.cycle = static_cast<uint32_t>(cycle);
        std::memcpy(record.data, &data, sizeof record.data);
        records.push_back(record);
    }

    void record() {
#if FC_TRACE
        const Vfastcar& t = *top;
        if (t.trace_matrix_valid)
            word(t.trace_matrix_tag, t.trace_matrix_layer, t.trace_matrix_lane, t.trace_matrix_addr,
                 t.trace_matrix_count, t.trace_matrix_data);
        if (t.trace_vector_valid)
            word(t.trace_vector_tag, t.trace_vector_layer, t.trace_vector_lane, t.trace_vector_addr,
                 t.trace_vector_count, t.trace_vector_data);
        if (t.trace_gate_valid)
            decisions.push_back({t.trace_gate_layer, t.trace_gate_lane, t.trace_gate_eligible, t.trace_gate_compute,
                                 static_cast<int32_t>(t.trace_gate_score)});
#endif
    }
};

constexpr int kHostLimit = 4096;  // cycles in which a register access must end

}  // namespace

extern "C" {

Engine* fc_new(uint64_t bytes) { return new Engine(bytes); }
void fc_delete(Engine* engine) { delete engine; }
uint8_t* fc_memory(Engine* engine) { return engine->memory.data(); }
uint64_t fc_cycle(const Engine* engine) { return engine->cycle; }
const char* fc_violation(const Engine* engine) { return engine->violation.c_str(); }

void fc_settings(Engine* engine, const Settings* settings) {
    engine->settings = *settings;
    engine->random = settings->seed * 0x9E3779B97F4A7C15ull | 1;
}

// Write a register; returns the response, or -1 when there was none in time.
int fc_write(Engine* engine, uint32_t offset, uint32_t value) {
    Vfastcar& t = *engine->top;
    t.s_axil_awaddr = offset;
    t.s_axil_wdata = value;
    t.s_axil_wstrb = 15;
    t.s_axil_awvalid = t.s_axil_wvalid = t.s_axil_bready = 1;
    for (int i = 0; i < kHostLimit; ++i) {
        engine->tick();
        if (engine->host.aw) t.s_axil_awvalid = 0;
        if (engine->host.w) t.s_axil_wvalid = 0;
        if (engine->host.b) {
            t.s_axil_bready = 0;
            return engine->host.bresp;
        }
    }
    return -1;
}

// Read a register; returns the response, or -1 when there was none in time.
int fc_read(Engine* engine, uint32_t offset, uint32_t* value) {
    Vfastcar& t = *engine->top;
    t.s_axil_araddr = offset;
    t.s_axil_arvalid = t.s_axil_rready = 1;
    for (int i = 0; i < kHostLimit; ++i) {
        engine->tick();
        if (engine->host.ar) t.s_axil_arvalid = 0;
        if (engine->host.r) {
            t.s_axil_rready = 0;
            *value = engine->host.rdata;
            return engine->host.rresp;
        }
    }
    return -1;
}

// Let the clock run until the interrupt rises, a bus rule is broken, or so many cycles or records are there.
uint64_t fc_run(Engine* engine, uint64_t cycles, uint64_t records) {
    uint64_t done = 0;
    while (done < cycles && !engine->top->irq && engine->violation.empty() && engine->records.size() < records) {
        engine->tick();
        ++done;
    }
    return done;
}

int fc_irq(const Engine* engine) { return engine->top->irq; }

uint64_t fc_records(Engine* engine, const Record** records) {
    *records = engine->records.data();
    return engine->records.size();
}

uint64_t fc_decisions(Engine* engine, const Decision** decisions) {
    *decisions = engine->decisions.data();
    return engine->decisions.size();
}

void fc_forget_records(Engine* engine) { engine->records.clear(); }
void fc_forget_decisions(Engine* engine) { engine->decisions.clear(); }

}  // extern "C"
