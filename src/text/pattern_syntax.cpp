#include "text/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace colibri {
namespace {

// Insides of character classes.
constexpr std::string_view kSpace = R"(\t-\r\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9A-Fa-f";

constexpr int kMaxNesting = 50;

bool is_letter_or_digit(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f'); }

// Property names compare without case, spaces, hyphens and underscores.
std::string fold_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c != ' ' && c != '-' && c != '_') out.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return out;
}

constexpr std::pair<std::string_view, std::string_view> kProperties[] = {
    // Names that PCRE2 spells otherwise.
    {"letter", "L"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"surrogate", "Cs"},
    {"privateuse", "Co"},
    {"unassigned", "Cn"},
    {"alpha", "Alphabetic"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"digit", "Nd"},
    {"space", "White_Space"},
    // Properties that are no script.
    {"any", "Any"},
    {"ascii", "ASCII"},
    {"alphabetic", "Alphabetic"},
    {"uppercase", "Uppercase"},
    {"lowercase", "Lowercase"},
    {"whitespace", "White_Space"},
    {"ideographic", "Ideographic"},
    {"emoji", "Emoji"},
    {"extendedpictographic", "Extended_Pictographic"}};

std::string property_name(std::string_view name) {
  const std::string folded = fold_name(name);
  for (const auto& [from, to] : kProperties) {
    if (folded == from) return std::string(to);
  }
  if (name.size() <= 2) return std::string(name);  // a general category
  return "sc:" + std::string(name);
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  Result<std::string> run() {
    while (at_ < in_.size()) COLIBRI_CHECK(step());
    if (std::any_of(groups_.begin(), groups_.end(), [](const Group& g) { return !g.option; })) return fail("\"(\" without \")\"");
    out_.append(groups_.size(), ')');
    return std::move(out_);
  }

 private:
  struct Group {
    std::size_t begin;  // in out_
    bool option;        // opened by (?i) alone: ends with the group around it
  };

  char peek(std::size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  // One character, whole.
  std::string_view take_character() {
    const std::size_t length = read_utf8(in_.substr(at_)).length;
    at_ += length;
    return in_.substr(at_ - length, length);
  }
  tl::unexpected<Error> refuse(std::string_view what) const { return fail("{} (before byte {}) is not supported", what, at_); }

  void atom(std::string_view text) {
    atom_ = out_.size();
    out_ += text;
  }

  Result<> step() {
    const char c = peek();
    switch (c) {
      case '\\': ++at_; return escape();
      case '[': {
        ++at_;
        COLIBRI_TRY(matcher, character_class(0));
        atom(matcher);
        return {};
      }
      case '(': ++at_; return open_group();
      case ')': ++at_; return close_group();
      case '{': ++at_; return interval();
      case '^':
        ++at_;
        atom("(?m:^)");
        return {};
      case '$':
        ++at_;
        atom("(?m:$)");
        return {};
      case '?':
      case '*':
      case '+':
      case '|':
      case '.':
        ++at_;
        if (c == '.') atom_ = out_.size();
        out_.push_back(c);
        return {};
      default: atom(literal(take_character())); return {};
    }
  }

  // A character that stands for itself, in a class and outside.
  static std::string literal(std::string_view character) {
    const bool plain =
        character.size() > 1 || is_letter_or_digit(character[0]) || static_cast<unsigned char>(character[0]) <= ' ';
    return plain ? std::string(character) : "\\" + std::string(character);
  }

  Result<> open_group() {
    const std::size_t begin = out_.size();
    if (take("?")) {
      for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"}) {
        if (!take(kind)) continue;
        out_ += "(?";
        out_ += kind;
        groups_.push_back({begin, false});
        return {};
      }
      if (take("<")) {
        const std::size_t end = in_.find('>', at_);
        if (end == std::string_view::npos || end == at_) return fail("\"(?<\" without a name");
        at_ = end + 1;
        out_ += "(?:";
        groups_.push_back({begin, false});
        return {};
      }
      std::string options;
      for (; peek() == 'i' || peek() == 'm' || peek() == '-'; ++at_) options.push_back(peek() == 'm' ? 's' : peek());
      if (options.empty() || std::count(options.begin(), options.end(), '-') > 1) return refuse("this kind of group, \"(?...\"");
      const bool whole = take(":");
      if (!whole && !take(")")) return refuse("this kind of group, \"(?...\"");
      out_ += "(?" + options + ":";
      groups_.push_back({begin, !whole});
      return {};
    }
    out_ += "(?:";
    groups_.push_back({begin, false});
    return {};
  }

  Result<> close_group() {
    while (!groups_.empty() && groups_.back().option) {
      out_.push_back(')');
      groups_.pop_back();
    }
    if (groups_.empty()) return fail("\")\" without \"(\" (before byte {})", at_);
    out_.push_back(')');
    atom_ = groups_.back().begin;
    groups_.pop_back();
    return {};
  }

  // Behind "{".
  Result<> interval() {
    const auto number = [&] {
      std::string digits;
      while (peek() >= '0' && peek() <= '9') digits.push_back(in_[at_++]);
      return digits;
    };
    const std::size_t begin = at_;
    const std::string low = number();
    const bool comma = take(",");
    const std::string high = comma ? number() : low;
    if ((low.empty() && high.empty()) || !take("}")) {
      at_ = begin;
      atom("\\{");
      return {};
    }
    const std::string text = "{" + (low.empty() ? "0" : low) + (comma ? "," + high : "") + "}";
    if (peek() == '?' && !comma) return refuse("\"{n}?\"");
    if (take("+")) {
      out_.insert(atom_, "(?:");
      out_ += text + ")+";
    } else {
      out_ += text;
    }
    return {};
  }

  // Behind "\", outside a class.
  Result<> escape() {
    COLIBRI_TRY(set, set_escape());
    if (set) {
      atom("[" + *set + "]");
      return {};
    }
    const char c = peek();
    const std::string word = "[" + std::string(kWord) + "]", other = "[^" + std::string(kWord) + "]";
    switch (c) {
      case 'W': atom(other); break;
      case 'H': atom("[^" + std::string(kHex) + "]"); break;
      case 'b': atom("(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))"); break;
      case 'B': atom("(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))"); break;
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
      case 'X': atom("\\" + std::string(1, c)); break;
      default: {
        COLIBRI_TRY(text, character_escape());
        atom(text);
        return {};
      }
    }
    ++at_;
    return {};
  }

  // Behind "\": a set of characters as the inside of a class; nullopt (and nothing taken) for another escape.
  Result<std::optional<std::string>> set_escape() {
    const auto found = [&](std::string_view inside) {
      ++at_;
      return std::optional<std::string>(inside);
    };
    switch (peek()) {
      case 's': return found(kSpace);
      case 'S': return found(kNotSpace);
      case 'w': return found(kWord);
      case 'h': return found(kHex);
      case 'd': return found("\\p{Nd}");
      case 'D': return found("\\P{Nd}");
      case 'p':
      case 'P': {
        bool negative = peek() == 'P';
        ++at_;
        const std::size_t end = in_.find('}', at_);
        if (!take("{") || end == std::string_view::npos) return fail("\"\\p\" without a name in braces (before byte {})", at_);
        if (take("^")) negative = !negative;
        const std::string name = property_name(in_.substr(at_, end - at_));
        at_ = end + 1;
        return std::optional<std::string>((negative ? "\\P{" : "\\p{") + name + "}");
      }
      default: return std::optional<std::string>();
    }
  }

  // Behind "\": one character, in a class and outside.
  Result<std::string> character_escape() {
    if (at_ == in_.size()) return fail("\"\\\" at the end");
    const char c = peek();
    if (!is_letter_or_digit(c)) return literal(take_character());
    ++at_;
    switch (c) {
      case 'n':
      case 't':
      case 'r':
      case 'f':
      case 'e':
      case 'a': return "\\" + std::string(1, c);
      case 'v': return std::string("\\x0b");
      case 'u': return code_point(4, 4);
      case 'x': {
        if (take("{")) {
          auto text = code_point(1, 8);
          if (text && !take("}")) return fail("\"\\x{{\" without \"}}\" (before byte {})", at_);
          return text;
        }
        auto text = code_point(1, 2);
        if (text && text->size() == 6 && (*text)[3] > '7') return refuse("a raw byte, \"\\x80\" and above,");
        return text;
      }
      default: return refuse("\"\\" + std::string(1, c) + "\"");
    }
  }

  Result<std::string> code_point(std::size_t least, std::size_t most) {
    const std::size_t begin = at_;
    while (at_ - begin < most && is_hex(peek())) ++at_;
    if (at_ - begin < least) return fail("expected {} hexadecimal digits before byte {}", least, at_);
    return "\\x{" + std::string(in_.substr(begin, at_ - begin)) + "}";
  }

  // A class behind its "[", to its "]" taken: a pattern that matches exactly one character.
  Result<std::string> character_class(int depth) {
    if (depth > kMaxNesting) return refuse("a class nested this deep");
    const bool negative = take("^");
    std::vector<std::string> terms;  // joined by &&
    std::string items;               // of the current term
    std::vector<std::string> nested;
    const auto end_term = [&] {
      const std::string own = items.empty() ? "" : "[" + items + "]";
      if (nested.empty()) {
        terms.push_back(own.empty() ? "(?!)" : own);
      } else {
        std::string all = own;
        for (const std::string& matcher : nested) all += (all.empty() ? "" : "|") + matcher;
        terms.push_back("(?:" + all + ")");
      }
      items.clear();
      nested.clear();
    };
    for (bool first = true;; first = false) {
      if (at_ == in_.size()) return fail("\"[\" without \"]\"");
      if (peek() == ']' && !first) break;
      if (take("&&")) {
        end_term();
        continue;
      }
      if (take("[:")) {
        COLIBRI_TRY(inside, posix_class());
        items += inside;
        continue;
      }
      if (take("[")) {
        COLIBRI_TRY(matcher, character_class(depth + 1));
        nested.push_back(std::move(matcher));
        continue;
      }
      COLIBRI_CHECK(class_item(items, nested));
    }
    ++at_;
    if (terms.empty() && nested.empty()) return (negative ? "[^" : "[") + items + "]";
    end_term();
    // A character of the first term that all the others match as well.
    std::string all = "(?:";
    for (std::size_t i = 1; i < terms.size(); ++i) all += "(?=" + terms[i] + ")";
    all += terms[0] + ")";
    return negative ? "(?:(?!" + all + ")(?s:.))" : all;
  }

  // A character, a range or a set.
  Result<> class_item(std::string& items, std::vector<std::string>& nested) {
    COLIBRI_TRY(first, class_atom(nested));
    items += first.text;
    if (first.set || peek() != '-' || peek(1) == ']' || peek(1) == '[' || in_.substr(at_ + 1).starts_with("&&")) return {};
    ++at_;
    COLIBRI_TRY(last, class_atom(nested));
    items += (last.set ? "\\-" : "-") + last.text;
    return {};
  }

  struct ClassAtom {
    std::string text;
    bool set = false;
  };
  Result<ClassAtom> class_atom(std::vector<std::string>& nested) {
    if (at_ == in_.size()) return fail("\"[\" without \"]\"");
    if (!take("\\")) return ClassAtom{literal(take_character()), false};
    COLIBRI_TRY(set, set_escape());
    if (set) return ClassAtom{*set, true};
    if (peek() == 'W' || peek() == 'H') {
      nested.push_back("[^" + std::string(in_[at_++] == 'W' ? kWord : kHex) + "]");
      return ClassAtom{"", true};
    }
    if (take("b")) return ClassAtom{"\\x08", false};
    COLIBRI_TRY(text, character_escape());
    return ClassAtom{text, false};
  }

  // Behind "[:".
  Result<std::string> posix_class() {
    constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
        {"alpha", "\\p{Alphabetic}"}, {"alnum", "\\p{Alphabetic}\\p{Nd}"}, {"digit", "\\p{Nd}"}, {"space", kSpace},
        {"upper", "\\p{Uppercase}"},  {"lower", "\\p{Lowercase}"},         {"word", kWord},      {"xdigit", kHex}};
    for (const auto& [name, inside] : kClasses) {
      if (take(std::string(name) + ":]")) return std::string(inside);
    }
    return refuse("this class in \"[:\"");
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;  // where the last thing that can be repeated begins in out_
  std::vector<Group> groups_;
};

}  // namespace

Result<std::string> to_pcre2_syntax(std::string_view pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size()) return fail("not valid UTF-8");
  return Translator(pattern).run();
}

}  // namespace colibri
