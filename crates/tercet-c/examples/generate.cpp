// The same as `generate.c` in C++: handles that free themselves, errors as exceptions.
//
//   generate_cpp MODEL [PROMPT]

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tercet.h"

namespace {

struct Free {
    void operator()(const void *handle) const { tercet_free(handle); }
};

template <typename T>
using Handle = std::unique_ptr<T, Free>;

// Calls `function` with the arguments, a place for the result and a place for the error.
template <typename T, typename Function, typename... Arguments>
Handle<T> create(Function function, Arguments... arguments) {
    T *result = nullptr;
    TercetError *error = nullptr;
    if (function(arguments..., &result, &error) != TERCET_STATUS_OK) {
        Handle<TercetError> owned(error);
        throw std::runtime_error(tercet_error_message(error));
    }
    return Handle<T>(result);
}

// A callback must not throw.
bool append(const TercetGenerateEvent *event, void *user) noexcept {
    static_cast<std::string *>(user)->append(event->text, event->text_bytes);
    return true;
}

std::string generate(const TercetDevice *device, const char *path, const char *prompt) {
    TercetModelOptions model = {};
    model.struct_size = sizeof model;
    auto generator = create<TercetGenerator>(tercet_generator_open, device, path, &model);
    TercetGenerateOptions options = {};
    options.struct_size = sizeof options;
    options.max_tokens = 16;
    std::string text;
    auto generation = create<TercetGeneration>(tercet_generate, generator.get(), prompt, &options, append,
                                               static_cast<void *>(&text));
    TercetGenerationView view;
    tercet_generation_read(generation.get(), &view, nullptr);
    if (text != std::string(view.text, view.text_bytes)) {
        throw std::runtime_error("the pieces are not the text");
    }
    return text;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc < 2) {
        std::cerr << "usage: generate_cpp MODEL [PROMPT]\n";
        return 2;
    }
    const char *prompt = argc > 2 ? argv[2] : "fn main";
    try {
        auto device = create<TercetDevice>(tercet_device_open, "cpu");
        std::vector<std::string> texts(2);
        std::vector<std::thread> threads;
        for (auto &text : texts) {
            threads.emplace_back([&] { text = generate(device.get(), argv[1], prompt); });
        }
        for (auto &thread : threads) {
            thread.join();
        }
        if (texts[0] != texts[1] || texts[0].empty()) {
            throw std::runtime_error("two threads wrote different texts");
        }
        std::cout << prompt << texts[0] << '\n';
        try {
            create<TercetGenerator>(tercet_generator_open, device.get(), "no/such/model.gguf",
                                    static_cast<const TercetModelOptions *>(nullptr));
            std::cerr << "a missing model was opened\n";
            return 1;
        } catch (const std::runtime_error &error) {
            std::cout << error.what() << '\n';
        }
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return tercet_live_handles() == 0 ? 0 : 1;
}
